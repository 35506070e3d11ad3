# SPDX-License-Identifier: Apache-2.0
"""The GPU agent: CUPTI's records of the process it runs in, as rows of the wire's kinds."""
