"""Published networks, each in a file of its own; `oracle.loading.load_model` builds them by name.

The table holds texts, so that importing it imports no network.
"""

ZOO = {
    "alexnet": "oracle.zoo.alexnet:alexnet",
    "vgg16": "oracle.zoo.vgg:vgg16",
    "resnet50": "oracle.zoo.resnet:resnet50",
    "resnet152": "oracle.zoo.resnet:resnet152",
    "cosmoflow": "oracle.zoo.cosmoflow:cosmoflow512",
    "cosmoflow512": "oracle.zoo.cosmoflow:cosmoflow512",
    "cosmoflow256": "oracle.zoo.cosmoflow:cosmoflow256",
    "cosmoflow128": "oracle.zoo.cosmoflow:cosmoflow128",
}
"""Name -> 'module:function' of a function without arguments that returns the graph."""
