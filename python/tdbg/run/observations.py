"""Observation: what a hook saw once in a training, and no statistic shows.

A hook writes it as an event of the run (docs/format.md, "What a hook saw"), the trial
reads it back, and a rule says what it means.

Thread safety: values that never change.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tdbg.run.json_values import is_integer, mapping_of, texts_of

__all__ = ["OBSERVATION", "PROBE_QUESTIONS", "Fault", "Observation"]

# What the event says it is about.
OBSERVATION = "observation"


PROBE_QUESTIONS = ("randomness", "samples", "masks", "labels")
"""What a probe asks of a model."""


class Fault(enum.StrEnum):
    """A fault, by the name that it has on disk: never rename one."""

    # Weight decay on normalizations, where biases are exempt from it.
    DECAYED_NORMALIZATION = "decayed_normalization"
    # One optimizer has all parameters of another one, through which its own are judged.
    SHARED_BY_OPTIMIZERS = "shared_by_optimizers"
    # An optimizer uses gradients of a loss that trains the parameters of another one.
    GRADIENTS_OF_ANOTHER_LOSS = "gradients_of_another_loss"
    # New optimizers of the same kind take the place of each other, and know nothing.
    OPTIMIZER_MADE_ANEW = "optimizer_made_anew"
    # Parameters, or modules, have an attribute like ``requires_grad`` that says other
    # than their flag, and nobody reads it.
    FLAG_NOT_READ = "flag_not_read"
    # An optimizer whose parameters have gradients does not step, while others do.
    OPTIMIZER_NEVER_STEPS = "optimizer_never_steps"
    # Gradients are cleared before the optimizer uses them; are used twice, or while a
    # scaler's factor is in them; or the optimizer has those of a copy of the model.
    CLEARED_BEFORE_STEP = "cleared_before_step"
    STEPPED_TWICE = "stepped_twice"
    STEPPED_SCALED = "stepped_scaled"
    OPTIMIZER_OF_COPY = "optimizer_of_copy"
    # A step of one's own adds no losses of layers, or does not scale its loss, while
    # the optimizer divides gradients by the scale.
    LOSSES_NOT_READ = "losses_not_read"
    LOSS_NOT_SCALED = "loss_not_scaled"
    # Weight decay on biases and normalizations, and not on weights.
    DECAY_UPSIDE_DOWN = "decay_upside_down"
    # Settings that a group does not have by the name that an optimizer reads; and the
    # two averages of Adam, exchanged.
    SETTING_NOT_READ = "setting_not_read"
    BETAS_EXCHANGED = "betas_exchanged"
    # A condition that the author of the training gave does not hold.
    BROKEN_INVARIANT = "broken_invariant"
    # Gradients are clipped without effect: no parameters are given, they have no
    # gradients yet, or the optimizer has used them before.
    CLIPPED_NOTHING = "clipped_nothing"
    CLIPPED_BEFORE_BACKWARD = "clipped_before_backward"
    CLIPPED_AFTER_STEP = "clipped_after_step"
    # What is clipped are parameters that no optimizer has, and that get no gradient.
    CLIPPED_OTHERS = "clipped_others"
    # Gradients are clipped while a scaler's factor is in them.
    CLIPPED_SCALED = "clipped_scaled"
    # A chain of transformations clips steps instead of gradients, or decays weights
    # behind the learning rate, so that they grow.  Or a mask leaves parameters out, and
    # their gradients are added to them.
    CLIPPED_UPDATES = "clipped_updates"
    DECAY_GROWS = "decay_grows"
    MASKED_NOT_FROZEN = "masked_not_frozen"
    # Terms of a loss: an entropy bonus that is a penalty, the ratio of a policy to
    # itself, the weight of a focal loss that is one for the batch, noise that is
    # multiplied by a variance or its logarithm.
    ENTROPY_PENALIZED = "entropy_penalized"
    RATIO_ALWAYS_ONE = "ratio_always_one"
    FOCAL_OF_MEAN = "focal_of_mean"
    VARIANCE_AS_DEVIATION = "variance_as_deviation"
    # Losses of a policy: good choices become unlikely; the better one of a ratio and
    # the clipped ratio counts; the values learn what they say themselves.
    POLICY_REVERSED = "policy_reversed"
    CLIPPED_FOR_NOTHING = "clipped_for_nothing"
    VALUES_LEARN_THEMSELVES = "values_learn_themselves"
    # An actor makes the values of its actions small.
    ACTOR_REVERSED = "actor_reversed"
    # What is clipped is no ratio of chances, but one of their logarithms; or its bounds
    # leave out 1.
    RATIO_OF_LOGARITHMS = "ratio_of_logarithms"
    RATIO_CLIPPED_ASIDE = "ratio_clipped_aside"
    # Targets have the next value where an episode has ended, or only there; sums go on
    # from one episode into the next; returns contain what was, not what comes.
    TARGET_PAST_END = "target_past_end"
    ENDS_INVERTED = "ends_inverted"
    SUM_PAST_END = "sum_past_end"
    RETURNS_OF_PAST = "returns_of_past"
    # Returns stand in the order in which they were added up: the last one is first.
    RETURNS_REVERSED = "returns_reversed"
    # Observations are the same before and after each step, or in all steps; the largest
    # value learns, not that of the action; errors have the value of the present.
    NOTHING_HAPPENS = "nothing_happens"
    OBSERVATION_KEPT_ONCE = "observation_kept_once"
    LARGEST_VALUE_LEARNS = "largest_value_learns"
    SUM_OF_PRESENT = "sum_of_present"
    # Classes weigh the more the more labels they have.
    WEIGHTS_UPSIDE_DOWN = "weights_upside_down"
    # Weights of classes that no label has, while others have no weight.
    WEIGHTS_NAME_NO_CLASS = "weights_name_no_class"
    # The divergence from a normal distribution is made as large as possible.
    DIVERGENCE_MAXIMIZED = "divergence_maximized"
    # Of the samples of a batch, the last one alone is in the loss.
    ONE_SAMPLE_COUNTS = "one_sample_counts"
    # Of data and noise that are mixed, one has a share of which no root was taken.
    SHARE_WITHOUT_ROOT = "share_without_root"
    # A divergence is a sum over the samples where the rest is a mean, or the reverse;
    # risks add up along samples that nobody has sorted.
    REDUCTIONS_DIFFER = "reductions_differ"
    RISKS_UNSORTED = "risks_unsorted"
    # Pairs of a contrastive loss: each sample is one that it must not match, one sample
    # is the match of all, and a sample and its match are equal.
    OWN_VIEW_COUNTS = "own_view_counts"
    ONE_MATCHES_ALL = "one_matches_all"
    VIEWS_ARE_ONE = "views_are_one"
    # Gradients of a loss where none belongs: in the target of a temporal difference, in
    # the advantage that weighs choices; and a term that changes, and has none.
    TARGET_LEARNS = "target_learns"
    ADVANTAGE_LEARNS = "advantage_learns"
    TERM_HAS_NO_GRADIENT = "term_has_no_gradient"
    # Operations over the wrong dimension: an attention's softmax over what is not
    # added up; a softmax, a norm or a recurrent layer over the samples of a batch.
    ATTENTION_OVER_QUERIES = "attention_over_queries"
    SOFTMAX_OF_BATCH = "softmax_of_batch"
    NORM_OF_BATCH = "norm_of_batch"
    RECURRENT_OVER_BATCH = "recurrent_over_batch"
    # Where a recurrent layer is read, one of its directions has read one element.
    DIRECTION_HAS_JUST_BEGUN = "direction_has_just_begun"
    # A loss takes scores of several places for those of one, or labels in another order
    # than the outputs.
    SCORES_MIXED = "scores_mixed"
    # A view that gives a dimension another place, where a transposition was meant.
    AXES_MIXED = "axes_mixed"
    # Images whose channels or pixels a reshape has mixed.
    IMAGES_MIXED = "images_mixed"
    LABELS_IN_ANOTHER_ORDER = "labels_in_another_order"
    # Weights that are shared: a tie that the model declares and does not have, one
    # that it has lost, parameters that are two and have one memory, and networks that
    # are several by name and one by their weights.
    TIE_NOT_MADE = "tie_not_made"
    TIE_BROKEN = "tie_broken"
    # A head that begins as a copy of the embedding.
    TIE_COPIED = "tie_copied"
    MEMORY_SHARED = "memory_shared"
    NETWORKS_ARE_ONE = "networks_are_one"
    # Networks that began as copies of each other, and are still equal after some steps.
    NETWORKS_STAY_EQUAL = "networks_stay_equal"
    # Micro-batches count alike, whatever their size, add up without division, are
    # divided and cleared, so that the last one counts alone, or are divided twice.
    MEAN_OF_MEANS = "mean_of_means"
    MICRO_BATCHES_ADD_UP = "micro_batches_add_up"
    MICRO_BATCHES_CLEARED = "micro_batches_cleared"
    MICRO_BATCHES_DIVIDED_TWICE = "micro_batches_divided_twice"
    # Schedules of the learning rate: one steps more often than the optimizer, and is
    # over early; its length is in epochs, in micro-batches, or for all ranks, while it
    # steps with the optimizer.
    SCHEDULE_TOO_OFTEN = "schedule_too_often"
    SCHEDULE_IN_EPOCHS = "schedule_in_epochs"
    SCHEDULE_IN_MICRO_BATCHES = "schedule_in_micro_batches"
    SCHEDULE_FOR_ALL_RANKS = "schedule_for_all_ranks"
    # Its warm-up is longer than all of it, or than the training.
    WARM_UP_TOO_LONG = "warm_up_too_long"
    WARM_UP_NOT_OVER = "warm_up_not_over"
    # It steps, and the optimizer that it belongs to does not, while another one does;
    # it sets the rate, and another one that steps, too, overwrites that.
    SCHEDULE_OF_ANOTHER = "schedule_of_another"
    SCHEDULE_OVERWRITTEN = "schedule_overwritten"
    # Its steps, or those at which the rate falls, are in batches while it steps once an
    # epoch, or the reverse; nobody steps it; the program makes it again and again.
    SCHEDULE_IN_BATCHES = "schedule_in_batches"
    DECAYS_IN_EPOCHS = "decays_in_epochs"
    SCHEDULE_NEVER_STEPS = "schedule_never_steps"
    SCHEDULE_MADE_ANEW = "schedule_made_anew"
    # It is at 0 since a step long ago, and the training goes on.
    SCHEDULE_AT_ZERO = "schedule_at_zero"
    # It is given a metric at each step, while it waits for a few epochs.
    PLATEAU_AT_EACH_STEP = "plateau_at_each_step"
    # It is given the numbers of epochs in the place of a metric.
    PLATEAU_OF_EPOCHS = "plateau_of_epochs"
    # Rates that are set where nobody reads them, and that are taken for factors.
    RATE_SET_ELSEWHERE = "rate_set_elsewhere"
    FACTOR_IS_RATE = "factor_is_rate"
    # It waits for a metric to fall that rises as the model gets better, or the reverse.
    PLATEAU_WRONG_WAY = "plateau_wrong_way"
    # A callback does so, to stop the training, to keep the best model or to lower the
    # rate; or it watches a metric that is not there.
    WATCHES_WRONG_WAY = "watches_wrong_way"
    WATCHES_NOTHING = "watches_nothing"
    # Of a training that goes on, the optimizer has no state, or the schedule none.
    OPTIMIZER_BEGINS_ANEW = "optimizer_begins_anew"
    SCHEDULE_BEGINS_ANEW = "schedule_begins_anew"
    # A load that restored nothing, because no name matched or because the state was
    # the model's own; and one that an initialization has wiped.
    LOAD_RESTORED_NOTHING = "load_restored_nothing"
    LOAD_OF_OWN = "load_of_own"
    LOAD_WIPED = "load_wiped"
    # Probes of the function: the same input twice gives other outputs in evaluation.
    RANDOM_IN_EVALUATION = "random_in_evaluation"
    # Layers for training only, such as dropout and augmentation, are active in it.
    ACTIVE_IN_EVALUATION = "active_in_evaluation"
    # What a sample gets depends on the samples beside it, or on its place among them.
    SAMPLES_ARE_MIXED = "samples_are_mixed"
    # The model sees tokens that it is to guess.
    LATER_IS_SEEN = "later_is_seen"
    # Outputs depend on how much padding follows.
    PADDING_IS_SEEN = "padding_is_seen"
    # Masks of attention that are upside down; that are ones and zeros, added to
    # scores; that is_causal replaces; that a decoder does not get for its memory.
    MASK_INVERTED = "mask_inverted"
    MASK_ADDED = "mask_added"
    MASK_DROPPED = "mask_dropped"
    MEMORY_PADDING_SEEN = "memory_padding_seen"
    # The labels of a model of sequences are its inputs, or the next token but one.
    LABELS_ARE_INPUTS = "labels_are_inputs"
    LABELS_SKIP_ONE = "labels_skip_one"
    # Labels that count and should not, or do not and should: at padding; of tokens
    # that were not masked; of a class among equals; of the token that ends texts.
    PADDING_COUNTS = "padding_counts"
    UNMASKED_COUNT = "unmasked_count"
    CLASS_NEVER_COUNTS = "class_never_counts"
    END_NEVER_COUNTS = "end_never_counts"
    PADDING_IS_TEXT = "padding_is_text"
    # A column of the inputs is the label.
    LABEL_AMONG_INPUTS = "label_among_inputs"
    # Targets of the size of images are mirrored where these are not.
    FLIPPED_APART = "flipped_apart"
    # A mask is given, nothing is computed of it, and labels at padding count.
    MASK_NOT_READ = "mask_not_read"
    # Samples have weights, and nothing is computed of them.
    WEIGHTS_NOT_READ = "weights_not_read"
    # Labels begin with 1, and the last one is no class.
    LABELS_FROM_ONE = "labels_from_one"
    # Labels of two classes, which a model takes for numbers.
    CLASSES_AS_NUMBERS = "classes_as_numbers"
    # Of samples that are mixed of two, the loss knows the label of one.
    MIXED_LABEL_FORGOTTEN = "mixed_label_forgotten"
    # No fault: the model was probed, or was not.  Words say why a question was not
    # asked, by the question (``PROBE_QUESTIONS``).
    PROBED = "probed"
    # No fault, either: the program keeps the best model by a metric of validation; or
    # it has read the weights of the model after an evaluation, perhaps to keep them.
    BEST_KEPT = "best_kept"
    # No fault: where the program evaluates, it speaks of validation.
    VALIDATION_NAMED = "validation_named"
    WEIGHTS_READ = "weights_read"
    # Nor is this one: after an evaluation, the training goes on from the weights that
    # were evaluated, or begins anew from others, as a word says.
    TRAINED_ON = "trained_on"

    # What a loader draws: the same random numbers in its workers, or in its epochs; its
    # first batches only; by fewer weights than samples.  Samples that it changes, and
    # samples that draw random numbers in the first epoch only.
    WORKERS_DRAW_ALIKE = "workers_draw_alike"
    EPOCHS_DRAW_ALIKE = "epochs_draw_alike"
    ONLY_FIRST_BATCHES = "only_first_batches"
    WEIGHTS_OF_CLASSES = "weights_of_classes"
    SAMPLES_OVERWRITTEN = "samples_overwritten"
    AUGMENTED_ONCE = "augmented_once"
    # A cache keeps what was drawn, or shuffled, before it; a call makes a dataset that
    # the program drops.
    KEPT_BY_CACHE = "kept_by_cache"
    CALL_DOES_NOTHING = "call_does_nothing"
    # Weights of a sampler that draws each sample once; that are those of other classes,
    # or of the same samples in another order.  An iterator that has come to its end,
    # and is asked for batches.
    WEIGHTS_CHANGE_NOTHING = "weights_change_nothing"
    WEIGHTS_OF_OTHER_CLASSES = "weights_of_other_classes"
    WEIGHTS_OF_OTHER_SAMPLES = "weights_of_other_samples"
    LOADER_AT_ITS_END = "loader_at_its_end"
    # The loader of validation trains, and that of training does nothing.
    TRAINED_ON_VALIDATION = "trained_on_validation"
    # A recurrent state goes from batch to batch, and the loader shuffles.
    STATE_OF_OTHER_SAMPLES = "state_of_other_samples"
    # Both parts of a dataset have one transform, that of evaluation.
    TRANSFORM_OF_EVALUATION = "transform_of_evaluation"
    # The batches of the first epoch come again and again, in their order.
    BATCHES_CYCLED = "batches_cycled"
    # Images that are flipped, and their masks are not.
    MASK_NOT_MOVED = "mask_not_moved"
    # Parts of one dataset share samples: that of training and that of evaluation.
    PARTS_OVERLAP = "parts_overlap"
    # Data of validation are those of training, or have samples of them.
    VALIDATION_IS_TRAINING = "validation_is_training"
    VALIDATION_SHARES = "validation_shares"

    # Running statistics of a normalization: evaluation uses those that it was made
    # with; the batch has the weight that is the past's in another framework; they
    # move, though the layer and the one before it are frozen.
    NEVER_FED = "never_fed"
    MOMENTUM_OF_ANOTHER_FRAMEWORK = "momentum_of_another_framework"
    FROZEN_STATISTICS_MOVE = "frozen_statistics_move"
    # The model is evaluated in training mode: as it is called, by the statistics of its
    # batch instead of those that it is given, or by its flags.  Or it is trained in
    # the mode of evaluation.
    EVALUATED_IN_TRAINING = "evaluated_in_training"
    EVALUATED_BY_BATCH = "evaluated_by_batch"
    EVALUATED_AS_FLAGGED = "evaluated_as_flagged"
    TRAINED_IN_EVALUATION = "trained_in_evaluation"
    # A step returns new running statistics, or a new state of the optimizer, and each
    # call is given the old ones.
    STATISTICS_DROPPED = "statistics_dropped"
    OPTIMIZER_STATE_DROPPED = "optimizer_state_dropped"
    # Random numbers, such as masks of dropout, are the same in each step.
    RANDOM_NUMBERS_REPEAT = "random_numbers_repeat"
    # Flags that say what is trained were set, and the compiled step knows others.
    FREEZING_NOT_COMPILED = "freezing_not_compiled"
    # A compiled step computes with arrays from outside that the program has replaced.
    TAKEN_IN_AND_REPLACED = "taken_in_and_replaced"

    # Indices beyond the last row of a table of parameters; and integers of the inputs
    # that their type cannot hold.
    ROWS_BEYOND_TABLE = "rows_beyond_table"
    INTEGERS_WRAP = "integers_wrap"

    # Inputs of evaluation: the channels of training in another order; all of them
    # larger by one factor; each batch standardized by its own statistics, or the whole
    # set by its own.
    CHANNELS_EXCHANGED = "channels_exchanged"
    INPUTS_SCALED = "inputs_scaled"
    SCALED_BY_BATCH = "scaled_by_batch"
    SCALED_BY_ITSELF = "scaled_by_itself"
    # Inputs of bytes that were scaled before a layer scales them.
    RESCALED_TWICE = "rescaled_twice"
    # A scaler or a vocabulary that the program fits to the data of evaluation anew; and
    # inputs and labels that it brings into two random orders.
    FITTED_ANEW = "fitted_anew"
    SHUFFLED_APART = "shuffled_apart"
    # A scaler was fitted on the rows of training and of evaluation together.
    SCALED_TOGETHER = "scaled_together"

    # What an evaluation makes of outputs: it compares scores with one half, as if they
    # were probabilities; gets the same answer whatever the model says; reads them over
    # the samples; and has a table of all pairs instead of one number for each sample.
    SCORES_ABOVE_HALF = "scores_above_half"
    ANSWER_IS_CONSTANT = "answer_is_constant"
    READ_OVER_SAMPLES = "read_over_samples"
    METRIC_OF_ALL_PAIRS = "metric_of_all_pairs"
    # A metric that was made for other outputs, or for other labels.
    METRIC_MISFITS = "metric_misfits"
    # And what the program calls the best is the lowest accuracy.
    LOWEST_IS_BEST = "lowest_is_best"
    # What it makes of its batches: it divides by another count than that of the samples
    # it evaluates, or adds up from one evaluation to the next; only the last batch
    # counts; a metric that is no mean over samples is averaged over batches; a
    # ranking is given classes.  And what is compared as the best is never set.
    DIVIDED_BY_OTHER_COUNT = "divided_by_other_count"
    COUNTS_GO_ON = "counts_go_on"
    LAST_BATCH_COUNTS = "last_batch_counts"
    SCORE_OF_BATCHES = "score_of_batches"
    CLASSES_FOR_SCORES = "classes_for_scores"
    # A metric gets answers for labels, answers in another order than its labels, or
    # outputs whose digits make them equal no label; or it counts what the loss ignores.
    ANSWERS_FOR_LABELS = "answers_for_labels"
    ORDER_OF_ANSWERS_LOST = "order_of_answers_lost"
    OUTPUTS_EQUAL_LABELS = "outputs_equal_labels"
    # An accuracy that counts the cells of labels with one class in each row.
    CELLS_COUNTED = "cells_counted"
    METRIC_OF_IGNORED = "metric_of_ignored"
    # Means of batches are added up and divided by the number of samples.
    MEANS_BY_SAMPLES = "means_by_samples"
    BEST_NEVER_MOVES = "best_never_moves"

    # Lines of a program that do not do what they are written for: a result that nobody
    # takes, a sum of a tensor and itself.
    RESULT_DROPPED = "result_dropped"
    # A setting, or a mask, that no line of the program reads.
    SETTING_UNREAD = "setting_unread"
    ADDED_TO_ITSELF = "added_to_itself"
    # And a function whose own backward is not the derivative of its forward.
    WRONG_BACKWARD = "wrong_backward"
    # Layers that compute less than they could: two with nothing between, an attention
    # that does not divide its scores or knows no places; and a layer that drops what
    # its argument says is to be kept.
    LAYERS_IN_A_ROW = "layers_in_a_row"
    SCORES_UNSCALED = "scores_unscaled"
    PLACES_UNKNOWN = "places_unknown"
    KEPT_AS_DROPPED = "kept_as_dropped"

    # Forms of a loss: a code with uniform noise; an error that is cut off before it is
    # squared; the density of an action that belongs to the number before its limit;
    # chances of other actions than those taken; a generator that helps its judge.
    NOISE_IS_UNIFORM = "noise_is_uniform"
    ERROR_CUT_OFF = "error_cut_off"
    # A softmax compares similarities of unit vectors, without a scale above 1.
    SIMILARITIES_CLOSE = "similarities_close"
    DENSITY_BEFORE_LIMIT = "density_before_limit"
    OTHER_ACTIONS_WEIGHED = "other_actions_weighed"
    # Rollouts of older policies that stay in a list; returns that are values and
    # standardized advantages; the larger one of two critics in a target; and a target
    # network that chooses actions, which the other one judges.
    ROLLOUTS_KEPT = "rollouts_kept"
    RETURNS_OF_STANDARDIZED = "returns_of_standardized"
    LARGER_OF_CRITICS = "larger_of_critics"
    ROLES_EXCHANGED = "roles_exchanged"
    # A diffusion whose samples never are mostly noise, or have one level in a batch.
    NEVER_ALL_NOISE = "never_all_noise"
    ONE_LEVEL_OF_NOISE = "one_level_of_noise"
    GENERATOR_HELPS = "generator_helps"
    # A step of training logs a metric under a name of validation.
    LOGGED_AS_VALIDATION = "logged_as_validation"
    # A metric with a state is computed that holds batches from before the evaluation.
    METRIC_STATE_KEPT = "metric_state_kept"
    # A test has the weights that the training left, though better ones were kept.
    LAST_IS_TESTED = "last_is_tested"

    # Windows of a series overlap, and evaluation has those between those of training.
    WINDOWS_OVERLAP = "windows_overlap"

    # Rows of evaluation have classes that training lacks, or one class only.
    CLASSES_NOT_TRAINED = "classes_not_trained"

    # Copies of a model: loaded weights that are the model's own; a copy whose weights
    # move, and which evaluates with old statistics; copies that never move.
    WEIGHTS_BY_REFERENCE = "weights_by_reference"
    STATISTICS_LEFT_BEHIND = "statistics_left_behind"
    AVERAGE_NEVER_MOVES = "average_never_moves"
    # An average of several models that evaluates with the statistics of the last one.
    AVERAGE_NEVER_FED = "average_never_fed"
    TARGET_NEVER_MOVES = "target_never_moves"
    # A copy that moves, and parts of which never do.
    COPY_PARTLY_STALE = "copy_partly_stale"
    # Targets that the program updates, and never asks, or asks about what is, not about
    # what comes a step later.
    TARGET_NEVER_ASKED = "target_never_asked"
    TARGET_OF_PRESENT = "target_of_present"
    # Copies that are the model: a name for the best one, an average or a target that
    # has the model's weights at each step; an average whose weights the model keeps
    # after an evaluation; and one that has nothing in common with the model.
    BEST_IS_MODEL = "best_is_model"
    AVERAGE_IS_MODEL = "average_is_model"
    TARGET_IS_MODEL = "target_is_model"
    AVERAGE_NOT_RESTORED = "average_not_restored"
    AVERAGE_OF_ANOTHER = "average_of_another"

    # Models whose answers another one learns: one in evaluation mode is trained; a
    # frozen one is in training mode and drops units.
    TEACHER_LEARNS = "teacher_learns"
    TEACHER_DROPS = "teacher_drops"

    # Replicas of a model differ. A wrapper that reduces gradients was never called,
    REPLICAS_BYPASS = "replicas_bypass"
    # its latest forward prepared no reduction,
    REPLICAS_UNSYNCED = "replicas_unsynced"
    # or it does not know these parameters;
    REPLICAS_LATE_PARAMETERS = "replicas_late_parameters"
    # they differ from the start on,
    REPLICAS_START = "replicas_start"
    # in one element,
    REPLICAS_ELEMENT = "replicas_element"
    # or by less than rounding explains;
    REPLICAS_ROUNDING = "replicas_rounding"
    # ranks have not made the same steps,
    REPLICAS_STEPS = "replicas_steps"
    # or made others of equal gradients;
    REPLICAS_UPDATES = "replicas_updates"
    # gradients differ by a factor, or otherwise;
    REPLICAS_SCALED = "replicas_scaled"
    REPLICAS_GRADIENTS = "replicas_gradients"
    # or only buffers differ.
    REPLICAS_BUFFERS = "replicas_buffers"
    # Ranks whose gradients are averaged are given equal batches.
    RANKS_SAME_INPUTS = "ranks_same_inputs"
    # Devices of one process hold an array that counts as equal on all, and is not.
    REPLICAS_DEVICES = "replicas_devices"


@dataclass(frozen=True, slots=True)
class Observation:
    """Something that a hook saw in a training.

    Attributes:
        fault: What it is.
        step: The global step as of which it is known.
        names: What it is about: names of parameters, modules, tensors or optimizers,
            the most important first; may be empty.
        numbers: Figures that tell how large or how many, by name.
        words: Texts, such as class names and settings, by name.

    Example:
        >>> Observation(Fault.BROKEN_INVARIANT, 3, ("tied",), {"distance": 0.5})
        ... # doctest: +ELLIPSIS
        Observation(fault=<Fault.BROKEN_INVARIANT: 'broken_invariant'>, step=3, ...)
    """

    fault: Fault
    step: int
    names: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            "what": OBSERVATION,
            "fault": str(self.fault),
            "step": self.step,
            "names": list(self.names),
            "numbers": dict(self.numbers),
            "words": dict(self.words),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Observation | None:
        """Return what ``to_json`` wrote; None if it is nothing that is known."""
        fault, step = document.get("fault"), document.get("step")
        if document.get("what") != OBSERVATION or fault not in list(Fault):
            return None
        if not is_integer(step):
            return None
        numbers, words = (mapping_of(document.get(key)) for key in ("numbers", "words"))
        return cls(
            Fault(fault),
            step,
            tuple(texts_of(document.get("names"))),
            {key: float(value) for key, value in numbers.items() if _is_number(value)},
            {key: text for key, text in words.items() if isinstance(text, str)},
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
