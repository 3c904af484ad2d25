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
}
