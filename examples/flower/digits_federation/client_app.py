"""The client: trains on its own digits and sends its weights, protected where the run asks for it."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_federation.task import Net, accuracy, private_digits, test_digits, train
from leakscope.defences import Clip, GaussianNoise
from leakscope.integrations.flower import protecting

NOISE = protecting(Clip(0.5), GaussianNoise(0.01))


def defend(message: Message, context: Context, call_next) -> Message:
    """Apply the defence that the run's settings name; none if they name none."""
    if context.run_config["defence"] == "noise":
        return NOISE(message, context, call_next)
    return call_next(message, context)


app = ClientApp(mods=[defend])


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Train on this client's digits and send the weights."""
    settings, partition = context.run_config, int(context.node_config["partition-id"])
    net = Net()
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
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = test_digits()
    metrics = MetricRecord({"accuracy": accuracy(net, x, y), "num-examples": len(x)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
