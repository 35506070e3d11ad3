/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Births, names and deaths of tasks; targets are followed through fork and removed at exit. */
#ifndef GPC_TASKS_H
#define GPC_TASKS_H

SEC("tp_btf/sched_process_fork")
int BPF_PROG(task_fork, struct task_struct *parent, struct task_struct *child)
{
	struct gpc_state *s;

	if (!is_target(parent->tgid))
		return 0;
	if (child->tgid != parent->tgid)
		set_target(child->tgid);
	s = state_of(child);
	if (s)
		s->epoch = gpc_control[GPC_CTL_EPOCH];
	task_emit(child, GPC_TASK_FORK, child->comm, parent->tgid, parent->pid);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(task_exec, struct task_struct *task)
{
	if (is_target(task->tgid))
		task_emit(task, GPC_TASK_EXEC, task->comm, task->real_parent->tgid, 0);
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(task_renamed, struct task_struct *task, const char *comm)
{
	struct gpc_state *s = state_if_any(task);

	if (s && s->epoch == (__u32)gpc_control[GPC_CTL_EPOCH])
		task_emit(task, GPC_TASK_RENAMED, comm, task->real_parent->tgid, 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(task_exit, struct task_struct *task)
{
	struct gpc_state *s;

	if (!is_target(task->tgid))
		return 0;
	s = state_if_any(task);
	if (s && s->off_ns)
		wait_recover(task, s, bpf_ktime_get_ns());
	task_emit(task, GPC_TASK_EXIT, task->comm, task->real_parent->tgid, 0);
	/* The counter fell before this tracepoint: zero means that no thread is left. */
	if (!task->signal->live.counter)
		clear_target(task->tgid);
	return 0;
}

#endif
