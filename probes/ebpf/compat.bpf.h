/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few kernel types the programs touch, and what differs between architectures.
 *
 * Only fields that are read are declared; libbpf moves each access to where the running kernel
 * has the field (CO-RE), so no generated vmlinux.h is needed.
 */
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
	BPF_RB_NO_WAKEUP = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define GPC_CORE __attribute__((preserve_access_index))

struct upid {
	int nr;
} GPC_CORE;

struct pid {
	unsigned int level;
	struct upid numbers[1];
} GPC_CORE;

struct super_block {
	__u32 s_dev;
} GPC_CORE;

struct inode {
	__u16 i_mode;
	unsigned long i_ino;
	struct super_block *i_sb;
} GPC_CORE;

struct address_space {
	struct inode *host;
} GPC_CORE;

struct file {
	struct inode *f_inode;
} GPC_CORE;

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} GPC_CORE;

struct files_struct {
	struct fdtable *fdt;
} GPC_CORE;

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
} GPC_CORE;

struct cfs_rq {
	int throttle_count;
	__u64 throttled_clock_self_time;
} GPC_CORE;

struct sched_entity {
	__u64 sum_exec_runtime;
	__u64 prev_sum_exec_runtime;
	struct cfs_rq *cfs_rq;
} GPC_CORE;

struct task_struct {
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	int exit_state;
	int pid;
	int tgid;
	int pagefault_disabled;
	struct sched_entity se;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct signal_struct *signal;
	struct files_struct *files;
	char comm[16];
} GPC_CORE;

struct hrtimer {
	__u8 is_soft;
} GPC_CORE;

struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
} GPC_CORE;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} GPC_CORE;

struct bpf_perf_event_data;

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
struct pt_regs {
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long orig_ax;
} GPC_CORE;

#define GPC_REGS_NR(regs) ((long)(regs)->orig_ax)
#define GPC_REGS_ARG0(regs) ((regs)->di)
#define GPC_REGS_ARG1(regs) ((regs)->si)
#define GPC_REGS_ARG2(regs) ((regs)->dx)
/* User addresses are below this, page tables of five levels included. */
#define GPC_USER_END (1ull << 56)
#else
#error "syscall numbers and registers of this architecture are not written yet"
#endif

#endif
