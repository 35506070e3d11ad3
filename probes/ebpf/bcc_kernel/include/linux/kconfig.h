/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * All there is of "kernel headers" for BCC, which includes this file before all else: its copies
 * of the kernel's headers, and its helpers that need them, count as included already. So nothing
 * is ever compiled against headers of a kernel that does not run.
 */
#define _UAPI__LINUX_BPF_H__
#define __LINUX_BPF_H__
#define __BPF_HELPERS_H
/* Used by what BCC adds at the end of a program. */
#define BCC_SEC(name) __attribute__((section(name), used))
