/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What differs between compilers and between architectures, and the kernel's constants. */
#ifndef GPC_COMPAT_H
#define GPC_COMPAT_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
#define bool _Bool
#define true 1
#define false 0

/* include/uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_RB_AVAIL_DATA = 0,
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RINGBUF_HDR_SZ = 8,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

/* Who compiles: clang ahead of time for any kernel, or BCC on the host for the kernel that runs. */
#ifdef GPC_BCC
#include "bcc.bpf.h"
#else
#include "core.bpf.h"
#endif

typedef struct {
	int counter;
} atomic_t;

struct seq_file;
struct bpf_perf_event_data;
#include "types.bpf.h"

/* include/linux/sched.h */
#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000
#define TASK_STOPPED_OR_TRACED 0x0000000c

/* include/uapi/linux/stat.h */
#define S_IFMT 0xf000
#define S_IFIFO 0x1000
#define S_IFDIR 0x4000
#define S_IFBLK 0x6000
#define S_IFREG 0x8000
#define S_IFSOCK 0xc000

#if defined(__TARGET_ARCH_x86)
#define GPC_REGS_NR(regs) ((long)(regs)->orig_ax)
#define GPC_REGS_ARG0(regs) ((regs)->di)
#define GPC_REGS_ARG1(regs) ((regs)->si)
#define GPC_REGS_ARG2(regs) ((regs)->dx)
/* User addresses are below this, page tables of five levels included. */
#define GPC_USER_END (1ull << 56)
/* arch/x86/include/asm/trap_pf.h: X86_PF_WRITE */
#define GPC_FAULT_WRITES(error_code) (((error_code) >> 1) & 1)
#elif defined(__TARGET_ARCH_arm64)
/* arch/arm64/include/asm/ptrace.h */
struct pt_regs {
	unsigned long regs[31];
	unsigned long orig_x0;
	int syscallno;
} GPC_CORE;
#define GPC_REGS_NR(regs) ((long)(regs)->syscallno)
#define GPC_REGS_ARG0(regs) ((regs)->orig_x0) /* regs[0] is the result's, too */
#define GPC_REGS_ARG1(regs) ((regs)->regs[1])
#define GPC_REGS_ARG2(regs) ((regs)->regs[2])
#define GPC_USER_END (1ull << 52)
/* arch/arm64/include/asm/esr.h: ESR_ELx_WNR */
#define GPC_FAULT_WRITES(error_code) (((error_code) >> 6) & 1)
#else
#error "syscall numbers and registers of this architecture are not written yet"
#endif

#endif
