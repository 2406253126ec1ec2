"""The client: trains on its own digits and sends its weights, protected or guarded where the run asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_federation.task import accuracy, network, private_digits, test_digits, train
from leakscope import GuardSettings, LocalTraining, Target
from leakscope.defences import Clip, GaussianNoise
from leakscope.integrations.flower import protecting
from leakscope.integrations.flower_guard import guarding

NOISE = protecting(Clip(0.5), GaussianNoise(0.01))


def defend(message: Message, context: Context, call_next) -> Message:
    """Apply the defence that the run's settings name; none if they name none."""
    if context.run_config["defence"] == "noise":
        return NOISE(message, context, call_next)
    return call_next(message, context)


def own_target(message: Message, context: Context) -> Target:
    """Return what this client's guard needs: its network, its digits and how it trains."""
    settings, partition = context.run_config, int(context.node_config["partition-id"])
    x, y = private_digits(partition, int(settings["examples"]))
    local = LocalTraining(
        epochs=int(settings["local-epochs"]),
        batch_size=int(settings["batch-size"]),
        rate=float(settings["learning-rate"]),
    )
    return Target(model=network(str(settings["network"])).train(), inputs=x, labels=y, client=local)


@cache
def guard(log: str) -> Callable[..., Message]:
    """Return the guard, made once: exact checks in every round, a short attack within a tenth of all rounds after the first."""
    settings = GuardSettings(seconds=30, share=0.1, guesses=2, evaluations=25, attacks=("cpl",), log=log)
    return guarding(own_target, settings)


def check(message: Message, context: Context, call_next) -> Message:
    """Attack the update before it is sent if the run's settings name a log for it."""
    if log := str(context.run_config["guard"]):
        return guard(log)(message, context, call_next)
    return call_next(message, context)


app = ClientApp(mods=[check, defend])


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Train on this client's digits and send the weights."""
    settings, partition = context.run_config, int(context.node_config["partition-id"])
    net = network(str(context.run_config["network"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = private_digits(partition, int(settings["examples"]))
    loss = train(
        net,
        x,
        y,
        epochs=int(settings["local-epochs"]),
        batch_size=int(settings["batch-size"]),
        rate=float(settings["learning-rate"]),
        seed=1000 * int(message.content["config"]["server-round"]) + partition,
    )
    metrics = MetricRecord({"loss": loss, "num-examples": len(x), "partition-id": partition})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    """Report how many test digits the new weights recognise."""
    net = network(str(context.run_config["network"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = test_digits()
    metrics = MetricRecord({"accuracy": accuracy(net, x, y), "num-examples": len(x)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
