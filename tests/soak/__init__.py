# SPDX-License-Identifier: Apache-2.0
"""A daemon under real load for a long time: does it stay as it is, and count right."""
