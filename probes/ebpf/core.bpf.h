/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Compiled ahead of time by clang: libbpf fits field accesses to the running kernel (CO-RE). */
#ifndef GPC_CORE_H
#define GPC_CORE_H

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define GPC_CORE __attribute__((preserve_access_index))
/* Whether the running kernel's type has a field. */
#define GPC_HAS(type, field) bpf_core_field_exists(((struct type *)0)->field)

#define GPC_LICENSE(text) char LICENSE[] SEC("license") = text

#endif
