/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Who a task is: its name, its parent, its ids; said once, when it is first met. */
#ifndef GPC_NAMES_H
#define GPC_NAMES_H

/* How deep in nested pid namespaces a task lives. */
static __always_inline __u32 ns_level(struct task_struct *task)
{
	struct pid *pid = task->thread_pid;

	return pid ? pid->level : 0;
}

/* A task's id in the pid namespace of a level; 0: it has none there, or is already unhashed. */
static __always_inline __u32 ns_id_at(struct task_struct *task, __u32 level)
{
	struct pid *pid = task->thread_pid;
	char *entry;
	__u32 nr = 0;

	if (!pid || pid->level < level)
		return 0;
	if (!level)
		return task->pid;
	entry = (char *)pid + bpf_core_field_offset(struct pid, numbers);
	/* The mask changes nothing: Linux 6.1 forgets every bound at a multiplication. */
	entry += (level * bpf_core_type_size(struct upid)) & 0xfff;
	entry += bpf_core_field_offset(struct upid, nr);
	if (bpf_probe_read_kernel(&nr, sizeof(nr), entry))
		count(GPC_CPU_FAIL_READ);
	return nr;
}

static __always_inline __u32 own_ns_id(struct task_struct *task)
{
	return ns_id_at(task, ns_level(task));
}

static __always_inline void task_fill(struct gpc_rec *r, struct task_struct *task, __u32 event,
				      const char *comm, __u32 parent, __u32 creator)
{
	r->start_ns = bpf_ktime_get_ns();
	r->op = event;
	r->waker_tid = parent;
	r->waker_tgid = creator;
	r->block_ns = own_ns_id(task) | (__u64)own_ns_id(task->group_leader) << 32;
	if (bpf_probe_read_kernel_str(&r->arg, 16, comm) < 0)
		count(GPC_CPU_FAIL_READ);
}

static __always_inline void task_emit(struct task_struct *task, __u32 event, const char *comm,
				      __u32 parent, __u32 creator)
{
	struct gpc_rec *r = rec_reserve(GPC_REC_TASK, task);

	if (!r)
		return;
	task_fill(r, task, event, comm, parent, creator);
	if (event == GPC_TASK_FORK && task->pid == task->tgid)
		rec_submit_now(r); /* a new process, whose name and owner procfs knows */
	else
		rec_submit(r);
}

/* Say once in an epoch who a task is: a short-lived waker's name is gone when one asks later. */
static __always_inline void announce(struct task_struct *task, struct gpc_state *s)
{
	__u32 epoch = gpc_control[GPC_CTL_EPOCH];

	if (s->epoch == epoch)
		return;
	s->epoch = epoch;
	task_emit(task, GPC_TASK_SEEN, task->comm, task->real_parent->tgid, 0);
}

static __always_inline void announce_other(struct task_struct *task)
{
	struct gpc_state *s;

	if (!task->pid || is_target(task->tgid)) /* targets are announced at their own switches */
		return;
	s = state_of(task);
	if (s)
		announce(task, s);
}

#endif
