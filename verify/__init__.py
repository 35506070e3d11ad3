# SPDX-License-Identifier: Apache-2.0
"""How often the attribution is right: delays made on purpose, and what was said of them."""
