# SPDX-License-Identifier: Apache-2.0
"""The contract between those who see events and those who explain them.

Standard library and msgpack only: this package is imported inside the traced process.
"""
