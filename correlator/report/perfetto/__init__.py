# SPDX-License-Identifier: Apache-2.0
"""A recording as a Perfetto trace: what threads, streams, steps and requests did, on tracks."""
