//! Servers beside ours, workers that cost no time, and the control groups in which servers run.

pub mod cgroup;
pub mod fake_worker;
pub mod peers;
