"""A training file: data, partition, model, clients, server and rounds, read and checked like a scenario."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field, create_model

from leakscope.attacks.engine.plan import DTYPES
from leakscope.clients import Client
from leakscope.core.errors import InputError
from leakscope.core.plugins import until_registration
from leakscope.core.registry import lookup
from leakscope.data import SOURCES
from leakscope.data.partition import PARTITIONS, Partition
from leakscope.defences import Defence
from leakscope.defences.stack import check_stack
from leakscope.federated import SELECTIONS, SERVERS, Count, Decay, Federation, Selection, Server
from leakscope.models import Init
from leakscope.scenario.cell import ModelChoice
from leakscope.scenario.components import KINDS, STRICT, AlsoByName, Kind, component_type, kind_type, list_of, model_of
from leakscope.scenario.identity import older
from leakscope.scenario.problems import Problem, ScenarioError
from leakscope.scenario.reader import UserFile, read_user_file, user_file_of
from leakscope.scenario.schema import build_value, make_client
from leakscope.scenario.settings import check_sentences

KIND = "a training file"
MOST_ROUNDS = 1_000_000
BESIDE = ("name", "rounds", "checkpoints")  # fields that do not change the numbers of a round
TRAINING_KINDS = {
    "partition": Kind("partition", PARTITIONS),
    "selection": Kind("selection", SELECTIONS),
    "server": Kind("server", SERVERS),
}
ALL_KINDS = {**{name: KINDS[name] for name in ("model", "weights", "defences")}, **TRAINING_KINDS}
CLIENT_HIDDEN = frozenset({"scaling", "defences", "rounds", "server_rate", "aggregate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Which examples are dealt out: the train part of a data set, or its first `examples`; accuracy is on its test part."""

    name: str
    scaling: Literal["none", "statistics"] = "none"  # statistics: by the set's mean and standard deviation
    size: int | None = None  # images are resized to size x size
    examples: int | None = None
    length: int | None = None  # words of a sentence (8), longer ones are cut and shorter ones left out
    shortest: int | None = None  # least words of a sentence: shorter ones than `length` are padded
    words: int | None = None  # vocabulary of generated sentences (2000)

    def __post_init__(self) -> None:
        lookup(SOURCES, self.name, "data set")
        for name, value in (("size", self.size), ("examples", self.examples)):
            if value is not None and value < 1:
                raise InputError(f"TrainingData.{name} must be at least 1, got {value}")
        check_sentences("TrainingData", self.name, self.length, self.words, self.shortest)


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToRun:
    """Numerical settings that can change the last digits of results."""

    dtype: str = "float32"
    together: int = 32  # clients that train as one batch
    form: Literal["native", "by_client", "split", "bands", "windows", "im2col"] | None = None  # None: the fastest

    def __post_init__(self) -> None:
        lookup(DTYPES, self.dtype, "dtype")
        if self.together < 1:
            raise InputError(f"HowToRun.together must be at least 1, got {self.together}")


@dataclass(frozen=True, kw_only=True)
class Training:
    """A checked training as typed values, one for each field of the file."""

    name: str
    data: TrainingData
    partition: Partition
    model: ModelChoice
    weights: Init
    client: Client  # without the scaling, which is set when the data is loaded
    defences: tuple[Defence, ...]
    selection: Selection
    server: Server
    decay: Decay
    norm: Literal["eval", "train"]
    rounds: int
    checkpoints: tuple[int, ...]
    evaluate: int
    seed: int
    precision: HowToRun
    plain: Mapping[str, object] = field(repr=False)  # the file with every default, for the hash of a training
    file: UserFile = field(repr=False)

    @functools.cached_property
    def federation(self) -> Federation:
        """Return the federation that is trained."""
        return Federation(
            client=replace(self.client, defences=self.defences),
            selection=self.selection,
            server=self.server,
            decay=self.decay,
            seed=self.seed,
            together=self.precision.together,
        )

    @property
    def decisive(self) -> dict[str, object]:
        """Return the plain settings that change the numbers of a round; younger ones of the data are left out at their default."""
        kept = {name: value for name, value in self.plain.items() if name not in BESIDE}
        return {**kept, "data": older("data", kept["data"])}

    def error(self, problems: list[Problem]) -> ScenarioError:
        """Return problems found later (a model that does not fit the data) as an error with their lines."""
        return self.file.error(problems)


def _by_name(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


@until_registration
@functools.cache
def file_model() -> type[BaseModel]:
    """Return the pydantic model of a training file."""
    data: object = Annotated[model_of(TrainingData, "data"), BeforeValidator(_by_name), AlsoByName(tuple(SOURCES))]
    number = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    fields: dict[str, Any] = {
        "name": (str, Field("", description="The title of the page.")),
        "data": (data, Field(description="What is dealt out to the clients; a name alone will do.")),
        "partition": (kind_type(TRAINING_KINDS["partition"]), Field(description="Which client holds which examples.")),
        "model": (component_type("model"), Field(description="The network; a name alone will do.")),
        "weights": (component_type("weights"), Field({"name": "pytorch"}, description="First weights of the server.")),
        "client": (
            model_of(Client, "client", CLIENT_HIDDEN),
            Field({}, description="What a client does between download and upload."),
        ),
        "defences": (list_of(component_type("defences")), Field([], description="Applied to every update, in order.")),
        "selection": (
            kind_type(TRAINING_KINDS["selection"]),
            Field({"name": "share"}, description="Who answers in a round."),
        ),
        "server": (
            kind_type(TRAINING_KINDS["server"]),
            Field({"name": "fedavg"}, description="What becomes of the answers."),
        ),
        "decay": (model_of(Decay, "decay"), Field({}, description="How the learning rate falls.")),
        "norm": (Literal["eval", "train"], Field("eval", description="Batch norm (and dropout) while clients train.")),
        "rounds": (number, Field(description="How many rounds.")),
        "checkpoints": (list_of(number), Field([], description="Rounds whose model is kept, in addition to the last.")),
        "evaluate": (
            number,
            Field(1, description="Number of rounds between measurements of accuracy; it is also measured at the end."),
        ),
        "seed": (Annotated[int, Field(ge=0, lt=2**31)], Field(0, description="Partition, weights, selection, order.")),
        "precision": (model_of(HowToRun, "precision"), Field({}, description="How to run.")),
    }
    return create_model("Training", __config__=STRICT, **fields)


def read_training(path: FilePath | str) -> Training:
    """Return the training in a YAML file, or raise all its errors."""
    return _training(read_user_file(path, KIND))


def training_of(data: Mapping[str, object]) -> Training:
    """Return the training of a plain mapping with the fields of a file."""
    return _training(user_file_of(data, KIND))


def _training(file: UserFile) -> Training:
    plain = file.check(file_model(), ALL_KINDS)
    problems: list[Problem] = []
    fields = {name: _build_field(name, value, problems) for name, value in plain.items()}
    if problems:
        raise file.error(problems)
    training = Training(**fields, plain=plain, file=file)  # type: ignore[arg-type]  # each built by its maker
    problems = _contradictions(training)
    if problems:
        raise file.error(problems)
    return training


def _build_field(name: str, value: object, problems: list[Problem]) -> object:
    """Return the typed value of a field; errors of its constructor are added to `problems`."""
    if name == "defences":
        return tuple(
            build_value((name, i), value, partial(KINDS[name].build, item), problems)
            for i, item in enumerate(cast(list[dict[str, object]], value))
        )
    return build_value((name,), value, partial(MAKERS[name], value), problems) if name in MAKERS else value


MAKERS: Mapping[str, Callable[..., object]] = {
    "data": lambda plain: TrainingData(**plain),
    "model": ModelChoice.of,
    "client": lambda plain: make_client({**plain, "rounds": 1, "server_rate": 0.0}, ()),
    "decay": lambda plain: Decay(**{**plain, "at": tuple(plain["at"])}),
    "checkpoints": tuple,
    "precision": lambda plain: HowToRun(**plain),
    **{name: ALL_KINDS[name].build for name in ("partition", "weights", "selection", "server")},
}


def _contradictions(training: Training) -> list[Problem]:
    """Return problems between fields that are valid on their own."""
    problems = []
    late = [number for number in training.checkpoints if number > training.rounds]
    if late:
        message = f"must be rounds of the training, which has {training.rounds}, got {late[0]}"
        problems.append(Problem(("checkpoints", training.checkpoints.index(late[0])), message))
    clients, selection = getattr(training.partition, "clients", None), training.selection
    if clients is not None and isinstance(selection, Count) and selection.number > clients:
        message = f"must be at most the {clients} clients there are, got {selection.number}"
        problems.append(Problem(("selection", "number"), message))
    try:
        check_stack(training.defences)
    except InputError as error:
        problems.append(Problem(("defences",), str(error)))
    if problems:
        return problems
    try:
        training.federation  # noqa: B018  its constructor checks that client and server fit
    except InputError as error:
        problems.append(Problem(("server",), str(error)))
    return problems
