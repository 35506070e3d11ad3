/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few kernel types the programs touch; only fields that are read are declared.
 *
 * libbpf moves each access to where the running kernel has the field (CO-RE), so no generated
 * vmlinux.h is needed. For BCC, which cannot, kernel_types.py makes of this file one with the
 * running kernel's own layout; it reads a field a line.
 */
#ifndef GPC_TYPES_H
#define GPC_TYPES_H

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

struct bpf_iter_meta {
	struct seq_file *seq;
} GPC_CORE;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} GPC_CORE;

/* Of other architectures: see compat.bpf.h. */
#ifdef __TARGET_ARCH_x86
struct pt_regs {
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long orig_ax;
} GPC_CORE;
#endif

#endif
