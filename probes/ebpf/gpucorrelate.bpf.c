/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What threads wait for and who wakes them, seen from the scheduler. One object: the programs
 * share their maps; support.py says which of them this kernel can run.
 */
#include "compat.bpf.h"
#include "events.gen.h"
#include "layout.gen.h"
#include "shared.bpf.h"
#include "state.bpf.h"
#include "names.bpf.h"
#include "syscalls.bpf.h"
#include "context.bpf.h"
#include "sums.bpf.h"
#include "blame.bpf.h"
#include "throttle.bpf.h"
#include "waits.bpf.h"
#include "tasks.bpf.h"
#include "faults.bpf.h"
#include "spins.bpf.h"
#include "walk.bpf.h"

GPC_LICENSE("Dual BSD/GPL");
