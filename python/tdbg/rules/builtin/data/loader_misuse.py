"""LoaderMisuse: data loaders that deliver other samples than the program means."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.training_facts import NO_PROFILE, TrainingFacts
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["LoaderMisuse"]

# Its hook looks at what fit is given, and needs no profiler.
_KERAS = "Keras"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMisuse(ObservedRule):
    """Report loaders that draw the same again, leave samples out, or change them.

    The rule finds

    - workers that draw the same random numbers, and epochs that do;
    - a loader that begins anew for each batch, and gives only its first one;
    - weights of a sampler that are fewer than the samples, those of other classes or
      samples, or without effect;
    - an iterator that has come to its end, and that each epoch asks again;
    - samples that the dataset changes whenever it gives them;
    - images that are flipped without their masks, or the reverse;
    - batches that ``itertools.cycle`` keeps, in the order of the first epoch;
    - training on the loader of validation, or through its transform;
    - shuffled batches to which a loop passes the recurrent state of the last one;
    - samples that are augmented once, and then come out of a cache;
    - parts of a dataset, for training and evaluation, that overlap;
    - validation data that are the training data, or have samples of them.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.WORKERS_DRAW_ALIKE,
            Fault.EPOCHS_DRAW_ALIKE,
            Fault.ONLY_FIRST_BATCHES,
            Fault.WEIGHTS_OF_CLASSES,
            Fault.WEIGHTS_CHANGE_NOTHING,
            Fault.WEIGHTS_OF_OTHER_CLASSES,
            Fault.WEIGHTS_OF_OTHER_SAMPLES,
            Fault.LOADER_AT_ITS_END,
            Fault.SAMPLES_OVERWRITTEN,
            Fault.AUGMENTED_ONCE,
            Fault.CALL_DOES_NOTHING,
            Fault.KEPT_BY_CACHE,
            Fault.MASK_NOT_MOVED,
            Fault.BATCHES_CYCLED,
            Fault.STATE_OF_OTHER_SAMPLES,
            Fault.TRAINED_ON_VALIDATION,
            Fault.TRANSFORM_OF_EVALUATION,
            Fault.PARTS_OVERLAP,
            Fault.VALIDATION_IS_TRAINING,
            Fault.VALIDATION_SHARES,
        }
    )
    hooks = frozenset({_KERAS, "PyTorch"})

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that no profiler watched the loaders, if so."""
        why = ObservedRule.inapplicable(self, training)
        is_watched = training.hook == _KERAS or "step" in training.profile
        return why or ("" if is_watched else NO_PROFILE)

    def severity_of(self, observation: Observation) -> Severity:
        """Return an info for what may be meant, else a warning.

        Epochs that shuffle may draw the same random numbers, and a dataset without
        transforms may make its samples up once.
        """
        is_meant = {
            Fault.EPOCHS_DRAW_ALIKE: not observation.numbers.get("same_order"),
            Fault.AUGMENTED_ONCE: not observation.words.get("transform"),
            Fault.KEPT_BY_CACHE: observation.words.get("how") == "augmented"
            and bool(observation.words.get("meant")),
        }
        is_info = is_meant.get(observation.fault, False)
        return Severity.INFO if is_info else Severity.WARNING

    def describe(self, observation: Observation) -> Description:
        """Say what the loader delivers instead, and how to mend it."""
        message, advice = _TEXTS[observation.fault](observation)
        return Description(message=message, value=1.0, threshold=0.0, advice=advice)


def _of_workers(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("workers", 2.0))
    source = seen.words.get("source", "a generator")
    message = (
        f"The {n} workers of the data loader draw the same random numbers from "
        f"{source}: when they fetched their batches of {seen.names[0]}, it was in the "
        "same state in each. So samples of different workers are augmented alike."
    )
    return message, (
        "Seed each worker by its own number, which is another one in each epoch: "
        "worker_init_fn=lambda i: np.random.seed(torch.initial_seed() % 2**32). If "
        "your dataset keeps a generator, make it there, not in __init__."
    )


def _of_epochs(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("epochs", 3.0))
    name, source = seen.names[0], seen.words.get("source", "a generator")
    message = (
        f"{name} draws the same random numbers from {source} in each epoch: it began "
        f"{n} epochs in the same state."
    )
    if seen.numbers.get("same_order"):
        message += (
            " The samples come in the same order, too, so each is augmented in the "
            "same way every time."
        )
    else:
        message += " That is fine if the augmentation is to be the same each time."
    return message, (
        "Seed once, before the first epoch. In worker_init_fn, which runs in each "
        "epoch, take torch.initial_seed() % 2**32 instead of a fixed number: it is "
        "another one each time."
    )


def _of_first(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("batches", 2.0))
    message = (
        f"The training uses only the first of {n:,} batches: your loop begins the "
        f"data loader of {seen.names[0]} anew for each step, and its samples come in "
        "the same order each time."
    )
    return message, (
        "Loop over the loader: for x, y in loader. next(iter(loader)) begins anew each "
        "time. If you need an iterator, make it once, outside the loop, and again at "
        "StopIteration."
    )


def _of_weights(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("weights", 0.0))
    samples = round(seen.numbers.get("samples", 0.0))
    message = (
        f"WeightedRandomSampler has {n:,} weights, and {seen.names[0]} has "
        f"{samples:,} samples: the loader draws only the first {n:,}."
    )
    return message, (
        "Give the sampler one weight for each sample, not for each class: "
        "WeightedRandomSampler(class_weights[labels], len(dataset))."
    )


def _of_idle(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("samples", 0.0))
    message = (
        f"WeightedRandomSampler draws each of the {n:,} samples of {seen.names[0]} "
        "once in each epoch (replacement=False), so its weights change only the order: "
        "rare classes stay as rare as they are."
    )
    return message, (
        "Draw with replacement: WeightedRandomSampler(weights, num_samples, "
        "replacement=True), which is the default."
    )


def _of_exchanged(seen: Observation) -> tuple[str, str]:
    share, drawn = (seen.numbers.get(key, 0.0) for key in ("share", "drawn"))
    cause = "they grow with the number of its samples"
    if seen.words.get("how") == "order":
        cause = "each is one divided by the number of samples of another class"
    message = (
        f"The weights of WeightedRandomSampler are not those of the classes of "
        f"{seen.names[0]}: {cause}. The rarest class has {share:.1%} of the samples, "
        f"and makes up {drawn:.1%} of what is drawn."
    )
    return message, (
        "Take one weight for each class, divided by the number of its samples, in the "
        "order of the class numbers: (1 / torch.bincount(labels))[labels]."
    )


def _of_misplaced(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("classes", 0.0))
    message = (
        f"The weights of WeightedRandomSampler belong to the samples of "
        f"{seen.names[0]} in another order: there are {n} different ones, as many "
        "of each as a class has samples, but samples of one class have different "
        "weights."
    )
    return message, (
        "Make the weights of the labels in the order of the dataset: after you shuffle "
        "or split it, and with the labels of the same part."
    )


def _of_end(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("asked", 0.0))
    message = (
        f"The iterator over the data loader of {seen.names[0]} has come to its end, "
        f"and your loop has asked it for batches {n} times since. So these epochs were "
        "empty: the training saw the data once."
    )
    return message, (
        "Loop over the loader itself in each epoch (for x, y in loader), or make the "
        "iterator anew: batches = iter(loader) at the beginning of each epoch."
    )


def _of_overwritten(seen: Observation) -> tuple[str, str]:
    where = seen.words.get("attribute", seen.names[0])
    if seen.words.get("by") == "program":
        message = (
            "The program changes its training data in place: whenever it takes a batch "
            f"for {seen.names[0]} out of {where}, it has written to these samples, and "
            "to no others. The changes add up, epoch by epoch."
        )
        return message, (
            "Change a copy: x = data[rows] makes one, then x = x + noise. data[rows] "
            "+= noise, and operations in place on a slice or a single sample, write to "
            "the data. Use clone() before these."
        )
    message = (
        f"The dataset changes its own samples: whenever the loader fetches one, "
        f"__getitem__ writes to the array in {where}. The changes add up, epoch by "
        "epoch."
    )
    return message, (
        "Copy the sample before you change it (x = self.x[i].clone()), or write "
        "x = x + noise instead of x += noise."
    )


def _of_cache(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("epochs", 2.0))
    name, transform = seen.names[0], seen.words.get("transform", "")
    message = (
        f"{name} is augmented once: its samples draw random numbers in the first "
        f"epoch, and none in the {n} epochs after it. So each sample is the same in "
        "all of them, as a cache behind the augmentation gives it."
    )
    if not transform:
        message += " That is fine if your dataset makes its samples up once."
    return message, (
        "Cache what you read, and augment what comes out of the cache: call "
        f"{transform or 'the transform'} after the lookup, in each __getitem__."
    )


def _of_other_loader(seen: Observation) -> tuple[str, str]:
    name, meant = seen.names[0], seen.words.get("meant", "train_loader")
    message = (
        f"Your training goes through {name}, and nothing in your program uses {meant}. "
        "So the model learns from the data that it is evaluated on."
    )
    return message, f"Loop over the other loader: for x, y in {meant}."


def _of_transform(seen: Observation) -> tuple[str, str]:
    keys = "attribute", "own", "meant"
    key, own, meant = (seen.words.get(each, "transform") for each in keys)
    message = (
        f"Training and evaluation draw from one {seen.names[0]}, whose {key} is {own}: "
        f"your training samples go through it, too, and not through {meant}. A part "
        "has no transform of its own, so setting that of part.dataset sets both."
    )
    return message, (
        "Create the dataset twice, with one transform each, and take the parts by the "
        f"same indices: Subset({seen.names[0]}(..., {key}={meant}), train_indices)."
    )


def _of_cycle(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("batches", 2.0))
    name = seen.names[0]
    message = (
        f"itertools.cycle({name}) keeps the {n:,} batches of the first epoch, and "
        f"gives them again and again: {name} shuffles once, and augments each sample "
        "once."
    )
    return message, (
        "Begin the loader anew for each epoch: def forever(loader): while True: yield "
        "from loader."
    )


def _of_state(seen: Observation) -> tuple[str, str]:
    name, state = seen.names[0], seen.words.get("state", "hidden")
    message = (
        f"Your loop passes `{state}` from each batch to the next, and {name} shuffles. "
        "So each sequence begins with the state in which another one, chosen at random,"
        " has ended."
    )
    return message, (
        f"Begin each batch without a state: {state} = None inside the loop. To keep "
        "it, use a loader with shuffle=False whose batches continue each other."
    )


def _of_masks(seen: Observation) -> tuple[str, str]:
    apart, moved = (round(seen.numbers.get(key, 0)) for key in ("apart", "moved"))
    image, mask = (seen.words.get(key, "") for key in ("image", "mask"))
    message = (
        f"{seen.names[0]} flips images and masks apart: of {moved:,} samples that came "
        f"again, {apart:,} have another flip in the image than in the mask. The last "
        f"image was flipped {image}, and its mask {mask}. So the labels of these "
        "pixels are those of other pixels."
    )
    return message, (
        "Draw once, and flip both: if random() < 0.5: image, mask = image.flip(-1), "
        "mask.flip(-1). Libraries have transforms for pairs, such as "
        "torchvision.transforms.v2 with tv_tensors.Mask, or Albumentations with mask=."
    )


def _of_parts(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("shared", 0.0))
    evaluated = round(seen.numbers.get("evaluated", 0.0))
    message = (
        f"Training and evaluation share samples: {n:,} of the {evaluated:,} indices "
        "that the evaluation's loader draws from are drawn in training, too, from the "
        "same dataset."
    )
    return message, (
        "Split the dataset once, and use both parts: train, val = random_split(data, "
        "sizes). Each call of random_split, or of randperm, makes a new split. Until "
        "then, the evaluation promises more than new data will show."
    )


def _of_same(seen: Observation) -> tuple[str, str]:
    del seen
    message = (
        "The validation data are the training data: fit got the same samples for both. "
        "Validation cannot show whether the model overfits, and callbacks that watch "
        "it keep the model that knows its training data best."
    )
    return message, (
        "Hold samples back, for example by sklearn.model_selection.train_test_split, "
        "and give fit those as validation_data."
    )


def _of_shared(seen: Observation) -> tuple[str, str]:
    if seen.words.get("how") == "shuffle":
        message = (
            "Training and validation share samples: take and skip divide a dataset "
            "that is shuffled anew in each pass, so each pass divides it otherwise, "
            "and validation soon has samples that were trained on."
        )
        return message, (
            "Divide first, and shuffle the training part afterwards, or pass "
            "reshuffle_each_iteration=False to the shuffle before take and skip."
        )
    n = round(seen.numbers.get("shared", 0.0))
    evaluated = round(seen.numbers.get("evaluated", 0.0))
    if seen.words.get("how") == "parts":
        message = (
            f"Training and validation share samples: {n:,} of the {evaluated:,} "
            "elements of the validation dataset are also in the training dataset, by "
            "take and skip of the same dataset."
        )
        return message, (
            "take does not remove elements. Write train = data.skip(n) beside "
            "validation = data.take(n)."
        )
    if seen.words.get("how") == "folds":
        fits = round(seen.numbers.get("fits", 2.0))
        message = (
            f"The model has trained on its validation data: in call {fits} of fit it "
            f"holds back {evaluated:,} samples, and {n:,} of them were training data "
            "of earlier calls. The model goes on with the weights that it has learnt "
            "there, so this fold is no test."
        )
        return message, (
            "Make a new model for each fold, inside the loop (model = build()). "
            "compile() does not set weights back."
        )
    message = (
        f"Training and validation share samples: {n:,} of the {evaluated:,} samples "
        "of the validation data are among the training data, to the last bit."
    )
    return message, (
        "Split first, and only then oversample or augment. Remove duplicates before "
        "you split. Until then, validation promises more than new data will show."
    )


def _of_pipeline(seen: Observation) -> tuple[str, str]:
    n = round(seen.numbers.get("epochs", 2.0))
    if seen.words.get("how") == "ordered":
        message = (
            f"All {n} epochs have the same order: the training dataset is cached after "
            "it was shuffled, and the cache keeps the order of the first epoch."
        )
        return message, "Cache first, then shuffle: data.cache().shuffle(n).batch(m)."
    name = seen.words.get("function") or "a mapped function"
    message = (
        f"The training data are augmented once: {name} draws random numbers, and the "
        f"cache behind it keeps what it made in the first of {n} epochs."
    )
    if seen.words.get("meant"):
        message += " That is fine if your dataset makes its samples up once."
    return message, "Cache first, then augment: data.cache().map(augment)."


def _of_call(seen: Observation) -> tuple[str, str]:
    call = seen.words.get("call", "shuffle")
    line = round(seen.numbers.get("line", 0.0))
    message = (
        f"{call}(...) in line {line} does nothing: it returns a new dataset, which "
        "your program drops, and leaves the old one as it is."
    )
    return message, f"Keep the result: {call.partition('.')[0]} = {call}(...)."


_TEXTS = {
    Fault.KEPT_BY_CACHE: _of_pipeline,
    Fault.CALL_DOES_NOTHING: _of_call,
    Fault.VALIDATION_IS_TRAINING: _of_same,
    Fault.VALIDATION_SHARES: _of_shared,
    Fault.AUGMENTED_ONCE: _of_cache,
    Fault.MASK_NOT_MOVED: _of_masks,
    Fault.BATCHES_CYCLED: _of_cycle,
    Fault.STATE_OF_OTHER_SAMPLES: _of_state,
    Fault.TRAINED_ON_VALIDATION: _of_other_loader,
    Fault.TRANSFORM_OF_EVALUATION: _of_transform,
    Fault.PARTS_OVERLAP: _of_parts,
    Fault.WORKERS_DRAW_ALIKE: _of_workers,
    Fault.EPOCHS_DRAW_ALIKE: _of_epochs,
    Fault.ONLY_FIRST_BATCHES: _of_first,
    Fault.WEIGHTS_OF_CLASSES: _of_weights,
    Fault.WEIGHTS_CHANGE_NOTHING: _of_idle,
    Fault.WEIGHTS_OF_OTHER_CLASSES: _of_exchanged,
    Fault.WEIGHTS_OF_OTHER_SAMPLES: _of_misplaced,
    Fault.LOADER_AT_ITS_END: _of_end,
    Fault.SAMPLES_OVERWRITTEN: _of_overwritten,
}
