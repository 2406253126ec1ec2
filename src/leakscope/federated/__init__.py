"""Federated training: client selection, local training of many clients at once, aggregation, decay, accuracy."""

from leakscope.federated.decay import Decay
from leakscope.federated.federation import Federation, State, begin, is_finite, parameters_of
from leakscope.federated.holdings import Holdings, deal
from leakscope.federated.participant import observe_others
from leakscope.federated.rounds import (
    NATIVE, Form, Played, client_seeds, groups_of, play_round, train_groups, who_answers,
)  # fmt: skip
from leakscope.federated.saving import pack, pack_private, unpack
from leakscope.federated.selection import SELECTIONS, Count, Everyone, Selection, Share
from leakscope.federated.servers import SERVERS, Averaging, Deltas, DistributedSGD, RoundRobin, Server
from leakscope.federated.training import Steps, run_rounds, train_by_gradients, train_federation
from leakscope.federated.utility import Utility, measure_utility

__all__ = [
    "NATIVE", "SELECTIONS", "SERVERS", "Averaging", "Count", "Decay", "Deltas", "DistributedSGD", "Everyone",
    "Federation", "Form", "Holdings", "Played", "RoundRobin", "Selection", "Server", "Share", "State", "Steps",
    "Utility", "begin", "client_seeds", "deal", "groups_of", "is_finite", "measure_utility", "observe_others", "pack", "pack_private",
    "parameters_of", "play_round", "run_rounds", "train_by_gradients", "train_federation",
    "train_groups", "unpack", "who_answers",
]  # fmt: skip
