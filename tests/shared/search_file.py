"""A policy search that takes seconds."""

SMALL = """
data: digits
model: lenet_dlg
width: 2
candidates: 5
keep: 2
images: 3
first: 0
stride: 1
points: 3
epochs: 1
share: 0.05
batches: 1
batch_size: 10
group: 2
threshold: null
"""
