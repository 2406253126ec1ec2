"""Attacks: recipes with published settings, and the components to build others.

`ATTACKS` maps names to recipes. `Matching` is an attack as data: start, simulator, objective, priors, optimiser with rules, stop.
`TOKEN_ATTACKS` are those on networks over token numbers. `aware` changes an attack to use what the attacker knows about the defences.
"""

from leakscope.attacks.exact.all_rounds import AllRounds as AllRounds
from leakscope.attacks.exact.analytic import Analytic as Analytic
from leakscope.attacks.exact.peel_attack import Peeling as Peeling
from leakscope.attacks.attack import (
    SEEN as SEEN, Attack as Attack, Extra as Extra, Fitted as Fitted, Matching as Matching,
)  # fmt: skip
from leakscope.attacks.cpa import Cocktail as Cocktail, cpa as cpa
from leakscope.attacks.engine.plan import Execution as Execution
from leakscope.attacks.engine.state import Recorder as Recorder, Stop as Stop
from leakscope.attacks.aware import (
    AveragedDropout as AveragedDropout, KnownDropout as KnownDropout, aware as aware, merge_rounds as merge_rounds,
    takes_steps as takes_steps,
)  # fmt: skip
from leakscope.attacks.labels import JOINT as JOINT, LABEL_RULES as LABEL_RULES
from leakscope.attacks.exact.linear_system import LinearSystem as LinearSystem
from leakscope.attacks.exact.scaled_entry import AtScaledEntry as AtScaledEntry
from leakscope.attacks.defended import (
    Clipped as Clipped, LargestSent as LargestSent, Rounded as Rounded, Sent as Sent, Whitened as Whitened,
)  # fmt: skip
from leakscope.attacks.deep_prior import ThroughGenerator as ThroughGenerator, deep_prior as deep_prior
from leakscope.attacks.distances import (
    DISTANCES as DISTANCES, Distance as Distance, angle as angle, angle_per_tensor as angle_per_tensor,
    cosine as cosine, cosine_per_tensor as cosine_per_tensor, disagreement as disagreement,
    entropy as entropy, l1 as l1, l2 as l2, l2_per_tensor as l2_per_tensor, squared_l2 as squared_l2,
)  # fmt: skip
from leakscope.attacks.dlfa import (
    CopiesStart as CopiesStart, EpochCopies as EpochCopies, EveryCopy as EveryCopy, LayerMatch as LayerMatch,
    OrderInvariant as OrderInvariant, OutOfRange as OutOfRange, dlfa as dlfa,
)  # fmt: skip
from leakscope.attacks.feature_inversion import (
    FeatureInversion as FeatureInversion, FeatureMatch as FeatureMatch, LayerInput as LayerInput,
    feature_inversion as feature_inversion,
)  # fmt: skip
from leakscope.attacks.known_policy import (
    KnownPolicy as KnownPolicy, ThroughPolicy as ThroughPolicy, ig_policy as ig_policy, learn_policy as learn_policy,
)  # fmt: skip
from leakscope.attacks.null import ClassMean as ClassMean, PriorOnly as PriorOnly, class_mean as class_mean
from leakscope.attacks.objectives import Explains as Explains, Match as Match
from leakscope.attacks.optimisers import (
    LBFGS as LBFGS, OPTIMISERS as OPTIMISERS, SGD as SGD, Adagrad as Adagrad, Adam as Adam, Exponential as Exponential,
    Optimiser as Optimiser, Rule as Rule, Steps as Steps,
)  # fmt: skip
from leakscope.attacks.polarised import (
    Dummy as Dummy, DummyPolarised as DummyPolarised, HeadGradient as HeadGradient, OnSimulated as OnSimulated,
    spn_aware as spn_aware, spn_head as spn_head, spn_unaware as spn_unaware,
)  # fmt: skip
from leakscope.attacks.priors import (
    GUESS as GUESS, PRIORS as PRIORS, BoxPenalty as BoxPenalty, LabelRegulariser as LabelRegulariser,
    Langevin as Langevin, Norm as Norm, OpponentVariation as OpponentVariation,
    PositionGradient as PositionGradient, TotalVariation as TotalVariation,
)  # fmt: skip
from leakscope.attacks.optimisers.rules import (
    Cosine as Cosine, Interval as Interval, SoftSign as SoftSign, into_box as into_box,
)  # fmt: skip
from leakscope.attacks.pulled import (
    PULL as PULL, NoPull as NoPull, Pulled as Pulled, learn_pull as learn_pull, spn_pull as spn_pull,
)  # fmt: skip
from leakscope.attacks.recipes import (
    ATTACKS as ATTACKS, analytic as analytic, cpl as cpl, dlg as dlg, idlg as idlg, ig as ig,
    linear_system as linear_system, matching as matching, peeling as peeling, prior_only as prior_only,
    spear as spear,
)  # fmt: skip
from leakscope.attacks.restarting import Restarting as Restarting
from leakscope.attacks.simulate import (
    ALPHA as ALPHA, LABEL as LABEL, SHIFT as SHIFT, SIMULATORS as SIMULATORS, LocalSteps as LocalSteps,
    OnTheLine as OnTheLine, OneGradient as OneGradient,
)  # fmt: skip
from leakscope.attacks.starts import (
    STARTS as STARTS, Insider as Insider, Normal as Normal, Patterned as Patterned, Solid as Solid, Start as Start,
    Uniform as Uniform,
)  # fmt: skip
from leakscope.attacks.surrogate import Constant as Constant, ig_update as ig_update, sme as sme
from leakscope.attacks.tokens.embedded import Embedded as Embedded
from leakscope.attacks.tokens.moves import Search as Search, TokenMoves as TokenMoves
from leakscope.attacks.tokens.readings import (
    TEXT_ATTACKS as TEXT_ATTACKS, BagOfWords as BagOfWords, SpanTest as SpanTest, bag_of_words as bag_of_words,
    span_test as span_test,
)  # fmt: skip
from leakscope.attacks.tokens.token_attacks import (
    TOKEN_ATTACKS as TOKEN_ATTACKS, RowLength as RowLength, TagMatch as TagMatch, TokenMatching as TokenMatching,
    lamp as lamp, tag as tag,
)  # fmt: skip
from leakscope.attacks.translate import (
    Moved as Moved, NearIdentity as NearIdentity, ThroughMap as ThroughMap, Within as Within, ig_affine as ig_affine,
    ig_shift as ig_shift,
)  # fmt: skip
from leakscope.attacks.units import InNoiseUnits as InNoiseUnits, PerGradient as PerGradient, Scaled as Scaled
from leakscope.attacks.view import (
    Clock as Clock, Objective as Objective, Prior as Prior, Simulated as Simulated, Simulator as Simulator,
    View as View,
)  # fmt: skip
from leakscope.attacks.batch_statistics import (
    BatchStatistics as BatchStatistics, Statistics as Statistics, read_batch_statistics as read_batch_statistics,
)  # fmt: skip
from leakscope.attacks.group import (
    EachMember as EachMember, GroupConsistency as GroupConsistency, InGroup as InGroup, Others as Others,
)  # fmt: skip
from leakscope.attacks.vision import gradinversion as gradinversion, modern as modern
from leakscope.attacks.watched import HeadFeatures as HeadFeatures, Watched as Watched
