"""Lines that prepare training and evaluation apart, as sources say them."""

from __future__ import annotations

import ast

import pytest
from sklearn import decomposition, preprocessing

from tdbg.hooks.pytorch.checks.probes.known_names import KnownNames, executed
from tdbg.hooks.pytorch.checks.probes.prepared_data import faults_of_preparation

pytestmark = pytest.mark.torch


def faults_in(source: str) -> list[str]:
    names = KnownNames({**vars(preprocessing), **vars(decomposition)})
    body = executed(ast.parse(f"{source}\nend"), names)
    return [fault.value for fault, _, _ in faults_of_preparation(body, names)]


SCALER = "s = StandardScaler()\nx_train = s.fit_transform(x_train)\n"


@pytest.mark.parametrize(
    "source",
    [
        SCALER + "x_test = s.fit_transform(x_test)",
        SCALER + "s.fit(val_df[cols])",
        "a = MinMaxScaler().fit_transform(Xtrain)\nMinMaxScaler().fit_transform(Xte)",
        SCALER.replace("StandardScaler", "PCA") + "x_test = s.fit_transform(x_test)",
    ],
)
def test_a_fit_to_evaluation_data_is_found(source: str) -> None:
    assert faults_in(source) == ["fitted_anew"]


@pytest.mark.parametrize(
    "source",
    [
        SCALER + "x_test = s.transform(x_test)",
        SCALER + "x_test = s.fit_transform(x_test) if anew else s.transform(x_test)",
        "s = Normalizer()\na = s.fit_transform(x_train)\nb = s.fit_transform(x_test)",
        "a = PCA(2).fit_transform(x_train)\nb = PCA(2).fit_transform(x_test)",
        "s = StandardScaler()\nx = s.fit_transform(concat([x_train, x_test]))",
        "for fold in folds:\n    s = StandardScaler().fit(x_train[fold])",
    ],
)
def test_one_scaler_and_figures_are_fine(source: str) -> None:
    assert faults_in(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "np.random.shuffle(images)\nnp.random.shuffle(labels)",
        "x = x[torch.randperm(n)]\ny = y[torch.randperm(n)]",
        "a, b = train_test_split(X)\nc, d = train_test_split(y)",
    ],
)
def test_inputs_and_labels_in_two_orders_are_found(source: str) -> None:
    assert faults_in(source) == ["shuffled_apart"]


@pytest.mark.parametrize(
    "source",
    [
        "order = np.random.permutation(n)\nx, y = x[order], y[order]",
        "np.random.seed(0)\nnp.random.shuffle(x)\nnp.random.seed(0)\nnp.random.shuffle(y)",
        "a = split(x, random_state=0)\nb = split(y, random_state=0)".replace(
            "split", "train_test_split"
        ),
        "np.random.shuffle(train_files)\nnp.random.shuffle(test_files)",
        "np.random.shuffle(data)\nx, y = data[:, :-1], data[:, -1]",
        "one.shuffle(x)\nother.shuffle(y)",
        "np.random.shuffle(y)",
        # An autoencoder has no use for the labels.
        "X, y = load()\nrng.shuffle(X)",
        "X, y = load()\na, b = train_test_split(X)",
    ],
)
def test_one_order_or_one_seed_is_fine(source: str) -> None:
    assert faults_in(source) == []
