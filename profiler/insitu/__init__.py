"""Layers timed in situ: inside real training steps, every operation between two marks of the device's clock.

Why. A kernel that is timed alone reuses warm memory, has the caches to itself and is fed what was made for it. Inside a
step it faults in fresh pages, finds its input where the layer before left it, and competes with what autograd keeps. On
a server CPU sums of kernels timed alone lay up to 16 % beside the step; sums of what is timed here lie within a few
percent, and what is left has a name.

How. A `TorchDispatchMode` (`observer`) sees every operation below autograd and marks the clock before and after it;
views are let through. That needs no module hooks, which break on sums in place (`out += identity`) and cannot see
functions, and works the same with events on CUDA. One step is logged first: what ran, in which module, for which
autograd node. From then on operations are known by their order, and a step is timed with two marks each. `attribution`
says to which layer and phase an operation belongs: a forward operation by its module (the module of a graph) or by its
place in the trace (any other module); a backward operation by the number of its autograd node, which was given in
forward; an update by the parameter that it touches.

* Backward-data and backward-weight of a convolution come out of one call of `aten::convolution_backward`. The observer
  makes two calls of it, one for each half of its `output_mask`, and times both: libraries run two kernels for the two
  halves anyway. Of a fully connected layer autograd itself makes two products: the one that reads the weight is
  backward-data.
* The first layer of a model computes no backward-data, so it has none here.
* An update in a loop is timed tensor by tensor; a kernel for all tensors is shared out by their sizes. What the
  optimizer does beside its kernels is shared out by tensors, since it is a loop over them.
* Steps with and without the observer alternate, so that drift of the machine hits both: the step that is printed is the
  undisturbed one, and what a mark costs lies between the operations and not in them.
"""
