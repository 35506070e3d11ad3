# SPDX-License-Identifier: Apache-2.0
"""Delays put into a real engine, and how often its requests' reports are right about them.

``python -m tests.truth.engine [--scenario NAME] [--json FILE]`` plays them and prints the table.
"""
