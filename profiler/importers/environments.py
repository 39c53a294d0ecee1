"""Which variables of an environment may be kept: a list of what changes performance, never the whole environment.

An environment holds tokens, passwords, paths and host names (nccl-tests writes all of it into its JSON). Kept are the
variables below, and of those only short values without paths, addresses or blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ALLOWED = frozenset(
    """
    NCCL_ALGO NCCL_PROTO NCCL_NTHREADS NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_BUFFSIZE
    NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_DIRECT_DISABLE NCCL_P2P_NET_CHUNKSIZE NCCL_SHM_DISABLE NCCL_NVLS_ENABLE
    NCCL_COLLNET_ENABLE NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NET_SHARED_BUFFERS NCCL_IB_DISABLE
    NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC NCCL_IB_SL NCCL_IB_GID_INDEX NCCL_IB_TIMEOUT
    NCCL_IB_ADAPTIVE_ROUTING NCCL_CROSS_NIC NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD NCCL_PXN_DISABLE
    NCCL_GRAPH_REGISTER NCCL_LOCAL_REGISTER NCCL_WORK_FIFO_DEPTH NCCL_LAUNCH_MODE NCCL_CUMEM_ENABLE
    NCCL_MNNVL_ENABLE NCCL_TREE_THRESHOLD NCCL_LL_THRESHOLD NCCL_RINGS NCCL_NET NCCL_BLOCKING_WAIT NCCL_CTA_POLICY
    NCCL_TESTS_SPLIT NCCL_TESTS_SPLIT_MASK FI_PROVIDER FI_EFA_USE_DEVICE_RDMA FI_EFA_FORK_SAFE RDMAV_FORK_SAFE
    CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING TORCH_NCCL_AVOID_RECORD_STREAMS
    TORCH_NCCL_HIGH_PRIORITY HSA_NO_SCRATCH_RECLAIM RCCL_MSCCL_ENABLE
    """.split()  # noqa: SIM905 - a column of quoted names is harder to read
)
"""Settings: where they differ, times may differ."""

SIZES = frozenset(
    """
    OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE PMI_SIZE WORLD_SIZE LOCAL_WORLD_SIZE SLURM_NTASKS SLURM_NNODES
    SLURM_NTASKS_PER_NODE SLURM_GPUS_PER_NODE
    """.split()  # noqa: SIM905 - a column of quoted names is harder to read
)
"""How large a job is: kept, but no part of what makes two environments differ."""
_VALUE = re.compile(r"[A-Za-z0-9_,:;+^.()x-]{0,64}")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+")


def allowed(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those variables that may be kept.

    >>> allowed([("NCCL_ALGO", "Ring"), ("AWS_SECRET_ACCESS_KEY", "x"), ("NCCL_NET", "/home/me/plugin.so")])
    {'NCCL_ALGO': 'Ring'}
    """
    return {
        name: value
        for name, value in pairs
        if name in ALLOWED | SIZES and _VALUE.fullmatch(value) and not _ADDRESS.search(value)
    }
