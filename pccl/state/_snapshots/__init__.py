"""Copies of a state in the memory of peers: what they consist of, where they lie, and how a state is restored from them.

A *snapshot* is the state of all members at one step. Each member's part of it is its *image*: the bytes of its slices, one behind
the other. Images are cut into *units*, and a *stripe* is a set of units of different members with *parity* at other members,
from which units that were lost are computed. A copy is the parity of a stripe with one unit.
"""
