/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Short waits, summed per thread and kind instead of streamed. */
#ifndef GPC_SUMS_H
#define GPC_SUMS_H

static __always_inline void sum_into(struct gpc_sum *v, __u64 start, __u64 now, __u64 runq)
{
	__u64 length = now - start;

	v->count++;
	v->sum_ns += length;
	v->runq_ns += runq;
	v->end_ns = now;
	if (length > v->max_ns)
		v->max_ns = length;
}

static __always_inline bool sum_in(void *map, struct gpc_sum_key *key, __u64 start, __u64 now,
				   __u64 runq)
{
	struct gpc_sum *v = bpf_map_lookup_elem(map, key), fresh = { .start_ns = start };

	if (v) {
		/* No lock: a thread's waits end one at a time. */
		sum_into(v, start, now, runq);
		return true;
	}
	sum_into(&fresh, start, now, runq);
	return !bpf_map_update_elem(map, key, &fresh, BPF_NOEXIST);
}

/* Add a short wait to its thread's sums; false: no room, it has to be streamed. */
static __always_inline bool sum_wait(struct task_struct *task, __u8 kind, __u64 start, __u64 now,
				     __u64 runq)
{
	struct gpc_sum_key key = { task->pid, task->tgid, kind };
	bool done;

	if (gpc_control[GPC_CTL_SUM_WINDOW] & 1)
		done = sum_in(&gpc_sums_odd, &key, start, now, runq);
	else
		done = sum_in(&gpc_sums_even, &key, start, now, runq);
	if (!done)
		count(GPC_CPU_SUMS_FULL);
	return done;
}

#endif
