"""Any `torch.nn.Module` as a `ModelGraph`: load it (`factory`), watch a step (`recorder`), write it down (`assembly`).

Why a dispatch mode on fake tensors. torch has four ways to see what a module computes. `torch.export` and symbolic
tracing want code that they can read: they refuse ordinary Python (control flow, caches, classes of their own), and
their graphs changed with most releases. `torch.compile` traces what it can and leaves the rest to eager mode, unseen.
Module hooks see modules and miss functions (`out + identity`, `F.relu`, attention written by hand). A
`TorchDispatchMode` sits below autograd and is called for every operation that really runs, forward and backward, so
nothing can be missed and any Python that runs can be traced; torch's own FLOP counter and memory tracker are such
modes, and the interface has been the same since torch 2.0. Fake tensors (`FakeTensorMode`, what `torch.export` runs on)
have shapes and no data: a model of any size needs no memory, and yet takes a CPU's way through torch, which plain meta
tensors do not (attention would fall apart into products). What depends on values cannot run, and is refused by name.

How it is put together.

* Operations are matched to layer kinds by their aten names (`kinds`); what has no kind is an `other` layer with the
  bytes that it read and wrote. Neighbours without a kind in the same module are one layer (an RMSNorm, say).
* Some Python functions are one layer and several operations: attention, dropout, losses. They are seen by a
  `TorchFunctionMode` (`watching`), and what they run is one record.
* Edges follow tensors. A view of as many items is the tensor itself; one of fewer or more (a slice, an expansion) is a
  layer that moves nothing. Writing in place makes a new value of every tensor that shares the memory.
* Backward runs as well. Autograd numbers its nodes in the order of forward, which tells whose gradient an operation
  computes; that is where the costs of `other` layers' backward come from.
* Parameters belong to the first layer that reads them; a later reader is `tied`. So do weights that are computed
  (weight normalisation): the computation holds the parameters, the convolution is tied.

Sizes are per sample: those of one step divided by its batch. What is computed once a step whatever the batch is
(positions, masks) is divided as well if it has parameters, and left out with a note if not.
"""
