"""The client: trains adapters on its own sentences and sends these weights alone."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sonnets_federation.task import accuracy, network, private_sentences, train, trained

app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Train on this client's sentences and send what was trained."""
    settings, partition = context.run_config, int(context.node_config["partition-id"])
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    x, y = private_sentences(partition)
    loss = train(net, x, y, epochs=int(settings["local-epochs"]), rate=float(settings["learning-rate"]))
    metrics = MetricRecord({"loss": loss, "num-examples": len(x), "partition-id": partition})
    content = RecordDict({"arrays": ArrayRecord(trained(net)), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    """Report how many other sentences the new weights recognise."""
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    metrics = MetricRecord({"accuracy": accuracy(net), "num-examples": 100})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
