/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How long a thread that could have run was kept from it by a CPU quota, its cgroup's or one
 * above: by the account that the scheduler keeps of the thread's own queue.
 */
#ifndef GPC_THROTTLE_H
#define GPC_THROTTLE_H

/* Remember the account of the queue that the thread is in, or was in before it slept. */
static __always_inline void throttle_note(struct gpc_state *s, struct task_struct *task)
{
	struct cfs_rq *queue = NULL;

	s->queue = NULL;
	if (!GPC_HAS(sched_entity, cfs_rq) || !GPC_HAS(cfs_rq, throttle_count))
		return;
	queue = task->se.cfs_rq;
	if (!queue)
		return;
	s->queue = queue;
	if (GPC_HAS(cfs_rq, throttled_clock_self_time))
		s->throttled_ns = queue->throttled_clock_self_time;
	else
		s->throttled_ns = queue->throttle_count > 0;
}

/*
 * How much of the last length ns it was throttled. A kernel that keeps no account of single
 * queues (before 6.6) says only whether it was at the beginning: then it was all along.
 */
static __always_inline __u64 throttle_since(struct gpc_state *s, __u64 length)
{
	struct cfs_rq *queue = s->queue;
	__u64 now = 0;

	if (!queue)
		return 0;
	if (!GPC_HAS(cfs_rq, throttled_clock_self_time))
		return s->throttled_ns ? length : 0;
	/* The queue may be gone with its cgroup: no plain access. */
	if (bpf_core_read(&now, sizeof(now), &queue->throttled_clock_self_time) ||
	    now <= s->throttled_ns)
		return 0;
	return now - s->throttled_ns < length ? now - s->throttled_ns : length;
}

#endif
