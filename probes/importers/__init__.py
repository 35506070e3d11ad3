# SPDX-License-Identifier: Apache-2.0
"""Traces that other tools recorded, as the events of the wire."""
