"""Causes that no rule's name stands for, and the words that name them.

A finding *names the cause* if its rule and message match the first pattern, and its
advice *is the fix* if it matches the second.  Both were written from the reports of
these faults, by somebody who knew no rule: they are the words that people use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CAUSES", "Cause"]


@dataclass(frozen=True, slots=True)
class Cause:
    """What has to be said of a fault.

    Attributes:
        named: Matches the rule and the message of a finding that names it.
        fix: Matches advice that mends it.
    """

    named: str
    fix: str

    def is_named(self, rule: str, message: str) -> bool:
        """Return whether this finding names the cause."""
        return bool(re.search(self.named, f"{rule}: {message}", re.IGNORECASE))

    def is_mended(self, advice: str) -> bool:
        """Return whether this advice is how to mend it."""
        return bool(re.search(self.fix, advice, re.IGNORECASE))


#: By the name that a case gives.
CAUSES = {
    "sees what comes later": Cause(
        r"causal|later (token|place|position)|(comes|come) (later|after)|future"
        r"|(sees?|attends? to|depends? on) (the )?(label|answer|next)",
        r"causal|mask",
    ),
    "labels at the wrong offset": Cause(
        r"shift|offset|(the )?next but one|(labels?|targets?) (are|is) (the )?inputs?"
        r"|copies (its|the) inputs?|same tokens",
        r"shift|offset|by one",
    ),
    "padding is read": Cause(
        r"padding (changes|leaks|is (read|attended|seen))|attend\w* (to )?(the )?pad"
        r"|depends? on (the )?padding|with more padding|batch\w* neighbou?rs",
        r"mask",
    ),
    "blank of CTC": Cause(
        r"blank|CTC|(class|label|letter|index|target) 0 .*(never|reserved|blank|not)",
        r"blank",
    ),
    "texts in one row": Cause(
        r"pack(ed|ing)|cross.?(document|sample|contamination)|block.?diagonal"
        r"|(other|another|earlier|previous|two|several) (document|text|line|segment)s?"
        r"|(document|text|segment)s? .*(each other|one another|boundar|mix)",
        r"mask|block|document|position_ids|cu_seqlens|varlen",
    ),
    "state of another text": Cause(
        r"(hidden |initial |recurrent )?state\w* .*(carr|kept|hand|other|another|shuffl"
        r"|previous|last batch|not (reset|zero))|stateful|(carr|handed)\w* .*state"
        r"|depends? on (the )?(previous|last|earlier|other) (batch|input|sample|text)",
        r"shuffl|reset|zero|order|contiguous|stateful|None",
    ),
    "an end that is no label": Cause(
        r"(end|eos|last token)\w* .*(never|no|not) .*(label|target|count)"
        r"|never .*(learn|label).* (end|eos)",
        r"eos|end|pad_token|own (number|token|index)",
    ),
    "a class is ignored": Cause(
        r"ignore_index|(class|label) 0 .*(ignored|never counts|not count)", r"ignore"
    ),
    "labels at places that must not count": Cause(
        r"(mask|place|position|token)s? .*(count|label)|-100|ignore_index"
        r"|(most|all) .*labels? .*(equal|same as|are) (the|their) inputs?",
        r"ignore_index|-100|mask|only",
    ),
    "another vocabulary": Cause(
        r"vocabular|token(izer|s of another)|embedding\w* .*(permut|other|another)",
        r"tokenizer|vocabular",
    ),
    "wrong axis": Cause(
        r"(wrong|other|another|batch|first|query) (dimension|axis)|over the (batch|quer"
        r"|dimension)|do(es)? not sum to|dim=|mix\w* (samples|rows)|batch independen"
        r"|depends? on .*(other samples|place in the batch|rest of the batch)",
        r"dim|axis|permute|transpose|reshape|batch_first",
    ),
    "random in evaluation": Cause(
        r"(random|differ|dropout|augment).*evaluat|evaluat\w* .*(random|differ|dropout"
        r"|augment)|same input .*(twice|differ)",
        r"self\.training|eval\(\)|nn\.Dropout|augment|transform|F\.dropout",
    ),
    "not back in training mode": Cause(
        r"eval\(\)|evaluation mode|TrainedInEval|not (back )?in train", r"train\(\)"
    ),
    "evaluated on what was trained on": Cause(
        r"(evaluation|validation|test|held.out)\w* .*(trained on|in (the )?training"
        r"|same (samples|rows|inputs)|overlap|leak|seen)|leak",
        r"split|apart|remove|duplicate|group|held.out|disjoint",
    ),
    "other inputs in evaluation": Cause(
        r"(evaluation|validation)\w* .*(mean|deviation|statistic|channel|scale|inputs? "
        r"differ)|inputs? .*(differ|other|another).*(evaluation|validation)",
        r"same (transform|statistics|order|normali)|training (data|statistics)"
        r"|fit|channel",
    ),
    "momentum of running statistics": Cause(
        r"momentum|running (statistic|mean|variance|average)", r"momentum|0\.1|0\.01"
    ),
    "frozen statistics move": Cause(
        r"(frozen|running|statistic|BatchNorm|normalization).*(move|change|updat|drift)",
        r"eval\(\)|momentum|training=False",
    ),
    "stale statistics": Cause(
        r"(running|statistic|buffer|BatchNorm|normalization).*(stale|never|initial"
        r"|fed|not (updated|copied|averaged)|stand still|unchanged|old)",
        r"update_bn|buffer|copy|mutable|batch_stats|forward",
    ),
    "average of weights": Cause(
        r"(EMA|average|moving average|target|teacher|copy).*(never (moves|changes)"
        r"|stand|not (move|change|updat)|same (tensor|storage)|unchanged|is the model"
        r"|at once|equals?|shares?|alias|by reference)|share\w* storage",
        r"update|deepcopy|copy|decay|momentum",
    ),
    "weights kept by reference": Cause(
        r"by reference|best .*(same|reference|share|storage|alias)|share\w* storage"
        r"|(restor|load)\w* .*(nothing|same weights|no effect)",
        r"deepcopy|clone|torch\.save|copy",
    ),
    "distillation loss": Cause(
        r"KLDivLoss|KL|diverge|(probabilit|softmax).*(instead|logarithm|log)"
        r"|reduction|negative loss|below zero",
        r"log_softmax|batchmean|logarithm|log_target",
    ),
    "one array many times": Cause(
        r"by reference|same (array|state|observation|memory|storage|tensor|object)"
        r"|(states?|inputs?|rows?|samples?|batch\w*) .*(all|are|is) (the same|identical"
        r"|equal|constant|one)|(identical|constant|one distinct|repeated) (state|input"
        r"|row|observation|sample)|alias|shares? (memory|storage)|replay .*(same|cop)",
        r"copy|clone|in place|in-place",
    ),
    "weights of what was logged": Cause(
        r"propensit|importance|inverse|off.policy|logg(ed|ing)"
        r"|weights? .*(frequent|likely|rare|invert|upside)|sampling probabilit",
        r"divid|invers|propensit|1 ?/",
    ),
    "one class of several": Cause(
        r"multi.?(label|hot)|several (labels|classes|targets|ones)|more than one (label"
        r"|class|target|1)|(targets?|rows?|labels?)( .*)? (do not|don't|does not|not) "
        r"(sum|add up) to (1|one)|(no|not a|not) (probabilit|distribution)|BCE"
        r"|exclu(de|sive)|sums? of (a |the )?(targets?|rows?|labels?)",
        r"BCE|sigmoid|binary",
    ),
    "rates or their logarithms": Cause(
        r"log_input|logarithm|log.?(rate|scale|space)|exp\(|exponent|softplus"
        r"|PoissonNLL",
        r"log_input|log|exp|softplus",
    ),
    "rows must be sorted": Cause(
        r"\b(un)?sort|\border(ed)? (of|by)|(in|by) (the )?order of|out of order|risk "
        r"set|cumsum|logcumsumexp|partial likelihood|depends? on (the )?(order|place)",
        r"sort|order|risk set",
    ),
    "logarithm of a sum": Cause(
        r"log.?sum.?exp|mixture|components? .*(same|equal|collaps|alike|one place)"
        r"|(mean|sum|average) of (the )?log|log\w* of (a|the) (sum|mixture)",
        r"logsumexp|log.?sum|mixture",
    ),
    "loss of a mean": Cause(
        r"focal|(weight|factor|power|exponent).*(mean|reduc)|mean .*(before|first)"
        r"|same (weight|factor) (for|to) (all|each|every)|already (a mean|reduced)",
        r"reduction=.none|per sample|each sample|before the mean",
    ),
    "class weights": Cause(
        r"class\w* weights?|weights? .*(class|frequen|rare)|frequent .*(more|weigh)",
        r"invers|weight",
    ),
    "variance for deviation": Cause(
        r"varianc|deviation|log.?var|exp", r"varianc|deviation|0\.5|square|exp"
    ),
    "meaning of the loss": Cause(
        r"quantile|pinball|asymmetr|mixup|second label|mixed|sign|negative", r"."
    ),
    "decay of scales": Cause(
        r"(weight )?decay.*(norm|bias|scale)|(norm|bias|scale).*decay",
        r"decay|group|exempt|no_decay",
    ),
    "frozen at random": Cause(
        r"frozen|requires_grad|NotInOptimizer|not trained|never (changes|learns)",
        r"requires_grad|thaw|unfreeze|optimizer",
    ),
    "optimizer of another's weights": Cause(
        r"optimizer.*(two|both|another|other|discriminator|critic|teacher|also|target)"
        r"|(teacher|target|discriminator|critic).*(optimizer|gradient|trained|chang|move)"
        r"|stepped by two",
        r"optimizer|detach|no_grad|requires_grad|parameters",
    ),
    "accumulation": Cause(
        r"micro.?batch|accumulat", r"divide|count|number of (tokens|labels)|weigh|sum"
    ),
    "clipping without effect": Cause(
        r"clip|generator|norm .*(exceeds|above|larger)", r"list\(|clip|parameters\(\)"
    ),
    "schedule": Cause(
        r"schedul|warm.?up|learning rate .*(rises|low|end|total|never)",
        r"step|warm|total",
    ),
    "optimizer state": Cause(
        r"optimizer.* state|state .*(anew|lost|zero|empty|fresh|began)|moments?",
        r"state_dict|state|load|restore",
    ),
    "same random numbers": Cause(
        r"same (random|augment|noise|mask|samples|batch)|seed|few (distinct|different)"
        r"|repeat|identical|PRNG|key",
        r"seed|generator|split|worker|augment|key|cache",
    ),
    "same order": Cause(
        r"same order|order .*(same|repeat|every epoch)|not (re)?shuffled",
        r"set_epoch|shuffl",
    ),
    "few samples of many": Cause(
        r"(few|only|part|distinct).*(samples|rows|data)|never (drawn|seen|used)"
        r"|repeat",
        r"len|sampler|shuffl|dataset|all",
    ),
    "scrambled inputs": Cause(
        r"(in place|in-place|changed?|drift|scrambl|permut|reshape|channel|transpos)",
        r"permute|transpose|clone|copy|in place|in-place|channel",
    ),
    "teacher's mode": Cause(
        r"(teacher|eval\(\)|training mode|dropout).*(random|differ|mode|train)"
        r"|same input .*(twice|differ)|random\w* (target|teacher)",
        r"eval\(\)",
    ),
    "pairs": Cause(
        r"(pair|view|positive|similarit|diagonal|contrastive).*(same|identical|wrong"
        r"|itself|label|masked)|same (tensor|input|view)|itself",
        r"view|augment|mask|diagonal|label|positive|pair",
    ),
    "penalty without a gradient": Cause(
        r"(penalty|term|part of the loss).*(no gradient|constant|graph|detach)"
        r"|create_graph",
        r"create_graph",
    ),
    "terminal states": Cause(
        r"terminal|bootstrap|done|end of (an |the )?episode",
        r"done|terminal|mask|trunc",
    ),
    "entropy bonus": Cause(r"entropy", r"sign|minus|subtract|negat"),
    "returns and advantages": Cause(
        r"return|advantage|discount|ratio|old (policy|log)",
        r"revers|axis|detach|old|before",
    ),
    "one layer many times": Cause(
        r"(same|one) (layer|module|parameter|tensor).*(times|twice|several|more than)"
        r"|share|registered (twice|more)|two names",
        r"deepcopy|for _ in|list comprehension|own|copy|each",
    ),
    "mixes the batch": Cause(
        r"mix\w* (samples|rows|graphs|the batch)|batch independen|edge\w* .*(offset"
        r"|other|graph|increment)|(across|over) (the )?(batch|samples|graphs)"
        r"|depends? on .*(other (samples|rows|graphs|inputs)|batch|neighbou?rs)"
        r"|(other|wrong) (rows?|samples?|graphs?)|view\W|reshape",
        r"offset|permute|transpose|cat|batch|reshape|view",
    ),
    "one direction sees one step": Cause(
        r"backward (direction|half|state|pass of the)|bidirectional|way back|revers(e"
        r"|ed) (direction|half|state)|(half|part) of (the )?(features|outputs|units"
        r"|inputs) .*(depend|see)|only (one|the last) (step|place|token|line|input)"
        r"|(earlier|first) (places|steps|tokens|inputs|lines) .*no (effect|gradient"
        r"|influence)",
        r"h_n|first|direction|cat|hidden",
    ),
    "a way around that is changed": Cause(
        r"in.?place|shortcut|skip|residual|identity|way around",
        r"in.?place",
    ),
    "schedule of noise": Cause(
        r"square root|\broot|sqrt|noise.*(varianc|deviation|level|scal|schedule|weak"
        r"|small|little)|(varianc|deviation).*nois|alpha|signal.to.noise",
        r"sqrt|root|varianc|schedule",
    ),
    "best by the wrong direction": Cause(
        r"(worst|lowest|minimum|smallest) .*(epoch|accuracy|weights|checkpoint)|mode="
        r"|mode (is )?.?min|wrong direction|monitor|greater_is_better|(best|restor\w*"
        r"|kept) .*(worse|worst|older|earlier)|weights? .*(went|go|set) back|revert"
        r"|rolled back|weights of (an|the) (early|earlier|first)",
        r"mode|max|direction|monitor|greater",
    ),
    "regularization is left out": Cause(
        r"regulari[sz]|penalt|model\.losses|add_loss|weight decay|kernel_regularizer",
        r"losses|add|sum|penalt|regulari[sz]",
    ),
    "decay that grows": Cause(
        r"decay|weights? .*(grow|increas)\w* .*(without|no|zero) gradient|away from "
        r"zero|order of (the )?(transform|chain)",
        r"before|order|sign|adamw|decay",
    ),
    "constants are trained": Cause(
        r"constants? .*(train|learn|gradient|optimi|updat|chang|mov)|buffer"
        r"|stop_gradient|not (a |meant as )?(parameters?|trainable)|non.?trainable"
        r"|(means?|deviations?|statistics?) (of .*)?(is|are|was|were|has|have) (been "
        r")?(trained|learned|moved|changed|updated)",
        r"stop_gradient|buffer|partition|filter|freeze|static",
    ),
    "numbers beyond the table": Cause(
        r"out.of.(bound|range)|clamp|beyond|larger than (the )?(table|vocab|number "
        r"of rows)|(last|same) row|outside (the )?(table|vocab)|table (is )?(too "
        r")?(small|short)|too (small|short) a table|(number|index|indices|ids?"
        r"|tokens?) .*exceed",
        r"vocab|size|rows|num_embeddings|table|bound|range|mode",
    ),
    "groups of other rows": Cause(
        r"\bgroups? (of|size|bound|mix|has|have|contain)|group.*(row|quer|contig"
        r"|shuffl)|quer(y|ies)|qid|contiguous|shuffl|order of (the )?rows",
        r"sort|group|contiguous|shuffl|qid|order",
    ),
    "a column that is dropped": Cause(
        r"column|remove_unused|sample.?weight|weights? .*(drop|remov|ignor|missing|lost"
        r"|never (given|used|seen))|(drop|remov)\w* .*(input|key|field)",
        r"remove_unused_columns|column|label_names|signature|keep",
    ),
    "inputs know the future": Cause(
        r"future|look.?ahead|leak|cent(re|er)ed|what comes|comes? (later|after)"
        r"|causal|(inputs?|features?|columns?) .*(contain|know|has|have|includ"
        r"|give)\w* .*(label|target|answer|next)",
        r"causal|cent(re|er)|shift|past|trailing",
    ),
    "state at padding": Cause(
        r"padding (changes|leaks|is (read|seen|pooled))|(last|final) (place|token|step"
        r"|output|state)\w* .*pad|pad\w* .*(last|final|pooled|state|output|answer"
        r"|prediction|read)|depends? on (the )?(padding|length)|with more padding"
        r"|pack_padded",
        r"length|pack_padded|mask|last|pad_token",
    ),
    "gradient through the advantage": Cause(
        r"detach|stop_gradient|(critic|value|advantage|baseline).*(gradient|policy"
        r"|actor)|gradient.*(critic|value|advantage|baseline)",
        r"detach|stop_gradient|no_grad",
    ),
    "time limits": Cause(
        r"truncat|time.?(limit|out)|terminal|terminat|bootstrap|\bdone\b"
        r"|end of (an |the )?episode",
        r"truncat|bootstrap|terminat|done|limit",
    ),
    "ties lost": Cause(r"\btie|share|embedding\w* .*head", r"tie|\.weight ="),
    "weights made anew": Cause(
        r"initiali[sz]|pre.?train|checkpoint|load|made anew|overwrit",
        r"before|load|after|init",
    ),
    "probabilities or logits": Cause(
        r"from_logits|logit|probabilit|softmax|sigmoid", r"from_logits|softmax|sigmoid"
    ),
    "gradient through the target": Cause(
        r"target.*gradient|stop_gradient|detach|gradient.*target",
        r"stop_gradient|detach",
    ),
    "label among the features": Cause(
        r"(feature|column|importance).*(label|alone|single|all|target)|leak|label",
        r"remove|drop|leave out|exclude",
    ),
    "stopped by what was trained on": Cause(
        r"(early stopping|stops?|eval\w*).*(training data|train set|trained on)|leak"
        r"|validation .*(training|same)",
        r"validation|held.out|split",
    ),
    "weights of rows": Cause(
        r"(scale_pos_weight|weights?|imbalance|rare|majority|class)",
        r"weight|scale_pos",
    ),
    "rows out of order": Cause(
        r"(split|validation|evaluation).*(sorted|class|label|order|shuffl)|unshuffled"
        r"|sorted|never in training|shuffl",
        r"shuffl|stratif|split",
    ),
    "average lent for good": Cause(
        r"(EMA|moving average|averaged?|shadow)\b.*(restor|put back|swap|stay|left in"
        r"|overwrit|in the model|model's)|restore\(|weights? .*(not|never) (restored"
        r"|put back)|weights? .*(jump|chang|set|replac|overwrit|swap)\w*.*(outside"
        r"|between|without|not by|other than)",
        r"restor|put back|swap|store|copy",
    ),
    "average of other weights": Cause(
        r"(EMA|moving average|averaged? \w*|shadow|teacher|target|copy)\b.*(initial"
        r"|random|older|before|pre-load|far|lag|behind|fresh|another|apart)",
        r"after|load|copy|reset|begin",
    ),
    "worst for best": Cause(
        r"(checkpoint|kept|restor\w*|load\w*|weights?)\b.*(worst|worse|lowest|earlier"
        r"|older|back to)|best .*(worst|lowest|mode)|mode.*(min|max)|ModelCheckpoint",
        r"mode|max|best|monitor",
    ),
    "members alike": Cause(
        r"(members?|models|copies|networks|heads|experts|branches|submodules|layers"
        r"|modules)\b.*(identical|alike|duplicat|(are|have|start with|the) (all )?"
        r"(the )?(same|equal))|(identical|same|equal) (initial\w*|weights|values)"
        r"|symmetr|diversity|seed|copies of each other|one network, not several",
        r"seed|initiali|differ|own",
    ),
    "weights of other rows": Cause(
        r"sampler|subset|weights? of (the )?(rows|samples)|sampl\w+ weights?"
        r"|weights? .*(misalign|other rows|other samples|ind(ex|ices))",
        r"subset|indices|index|weight|same rows",
    ),
    "training mode in evaluation": Cause(
        r"(random|dropout|statistics?|train\w* mode|train\(\))\b.*(evaluat|validat"
        r"|eval\(\))|(evaluat|validat)\w* .*(random|dropout|train\w* mode|statistic)"
        r"|eval\(\).*(no effect|nothing|still|ignored)|same input .*(twice|differ)",
        r"mode|super\(\)|eval\(\)",
    ),
    "shapes of evaluation": Cause(
        r"broadcast|\bshapes?\b|all pairs|every pair|\(\d+, ?\d+\).*\(\d+,?\)"
        r"|\(\d+,?\).*\(\d+, ?\d+\)",
        r"shape|squeeze|unsqueeze|view|flatten|\[:, None\]",
    ),
    "threshold of logits": Cause(
        r"threshold|logits? .*(compar|probabilit)|compar\w* .*(0\.5|one half)",
        r"sigmoid|0\.0|> 0|threshold",
    ),
    "plateau of the wrong sign": Cause(
        r"plateau|schedul|\bmode\b|(learning )?rate .*(reduc|cut|lower|fell|falls?"
        r"|dropp?|shrunk|decay)",
        r"mode|max|plateau|schedul|patience",
    ),
    "rate of the checkpoint": Cause(
        r"(learning )?rate .*(checkpoint|load|saved|overwrit|restor|resum|differs?"
        r"|not (the|what)|other than|given)|(load|restor|checkpoint|resum)\w* .*rate",
        r"after load|param_groups|rate|lr",
    ),
    "clipped while scaled": Cause(
        r"unscal|scaler|(gradient|loss)\w* .*\bscaled?\b|clip",
        r"unscale_|before clip|clip",
    ),
    "misspelt freeze": Cause(
        r"require_grad|misspel|unknown attribute|froze|freez"
        r"|(meant|intended|supposed) .*(train|chang|updat|learn)",
        r"requires_grad|freez|spell",
    ),
    "group without schedule": Cause(
        r"param\w* group|groups?\b.*\brate|rates?\b.*\bgroup|schedul"
        r"|rate .*(stays?|constant|never (falls|changes))",
        r"group|schedul|all",
    ),
    "gradients of another loss": Cause(
        r"zero_grad|gradients? .*(left over|accumulat|remain|clear|stale|earlier"
        r"|previous|(an)?other('s)? (loss|optimizer|step|network)|add(ed)? up"
        r"|not (those|its))",
        r"zero_grad|detach|requires_grad|clear",
    ),
    "rates of layers": Cause(
        r"(learning )?rates? .*(layers?|head|group|revers|upside)|(layers?|head"
        r"|groups?) .*(learning )?\brates?\b|(head|last layer|first layers?) .*"
        r"(mov|updat|chang|learn)\w* .*(less|slow|more|fast|times)",
        r"revers|order|rate|lr",
    ),
    "cleared while accumulating": Cause(
        r"micro.?batch|accumulat|zero_grad|(gradients?|backward)\w* .*(clear|zeroed"
        r"|thrown|discard|lost|only the last|never used|overwrit)",
        r"zero_grad|outside|accumulat|after the step",
    ),
    "average in half precision": Cause(
        r"(bfloat16|float16|half|precision|round)\w*.*(average|EMA|teacher|updat|increm"
        r"|copy)|(moving average|averaged? weights|EMA|teacher|copy)\b.*(never (moves"
        r"|changes)|stand|not (move|change|updat)|unchanged|round|float16|precision)",
        r"float32|full precision|fp32|master",
    ),
}
