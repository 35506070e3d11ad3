/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Who had the CPU while a thread that could have run did not. */
#ifndef GPC_BLAME_H
#define GPC_BLAME_H

/* A shorter stay on the CPU is not kept: it costs nobody much. */
#define STINT_NS 100000

/* How long a task that is being switched away from was on the CPU. */
static __always_inline __u64 ran_ns(struct task_struct *task)
{
	return task->se.sum_exec_runtime - task->se.prev_sum_exec_runtime;
}

/* At every switch of the machine: two loads and a comparison. */
static __always_inline void stint_note(struct task_struct *prev)
{
	__u64 ran = ran_ns(prev);
	struct gpc_stints *stints;
	struct gpc_stint *one;

	if (ran < STINT_NS || !prev->pid)
		return;
	stints = &gpc_stays[bpf_get_smp_processor_id() & (GPC_MAX_CPUS - 1)];
	one = &stints->ring[stints->next++ & (GPC_STINTS - 1)];
	one->end_ns = bpf_ktime_get_ns();
	one->ran_ns = ran;
	one->tid = prev->pid;
	one->tgid = prev->tgid;
}

/* The longest stay that ended within a wait on the CPU it began on; NULL: all were short. */
static __always_inline struct gpc_stint *stint_longest(__u32 cpu, __u64 since)
{
	struct gpc_stints *stints = &gpc_stays[cpu & (GPC_MAX_CPUS - 1)];
	struct gpc_stint *longest = NULL;
	__u64 most = 0;
	int i;

#pragma unroll
	for (i = 0; i < GPC_STINTS; i++) {
		struct gpc_stint *one = &stints->ring[i];

		/* Began after the wait did, as the CPU was the waiter's; a realtime task's account
		 * is not kept per stay and claims more than that. */
		if (one->end_ns > since && one->ran_ns > most &&
		    one->ran_ns < one->end_ns - since + STINT_NS) {
			most = one->ran_ns;
			longest = one;
		}
	}
	return longest;
}

/* Name who ran instead: the longest of the last stays; when all were short, the first to run. */
static __always_inline void blame(struct gpc_state *s, struct task_struct *prev, __u64 length)
{
	struct gpc_stint *longest = length > STINT_NS ? stint_longest(s->cpu, s->off_ns) : NULL;

	if (longest) {
		s->waker_nr = (__u32)prev->pid == longest->tid ? syscall_of(prev)
			      : s->waker_tid == longest->tid   ? s->waker_nr
							       : -1;
		s->waker_tid = longest->tid;
		s->waker_tgid = longest->tgid;
	} else if (!s->waker_tid && prev->pid) {
		s->waker_tid = prev->pid;
		s->waker_tgid = prev->tgid;
		s->waker_nr = syscall_of(prev);
	}
}

#endif
