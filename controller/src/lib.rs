//! Controllers that carry out EvictionRequests and NodeMaintenances. They are ordinary clients of the Kubernetes API.
//!
//! ```text
//! watches ──▶ stores ──▶ work queues ──▶ observe ──▶ decide, plan (pure) ──▶ act ──▶ API
//! ```
//!
//! Start at [`server::run`] for the process, [`evictionrequest::decide`] for a request, [`nodemaintenance::plan`] for
//! a node. Each controller has a pure core, which takes a snapshot and the time and returns what to do.
//!
//! # Layers
//!
//! A module imports only from the lines below its own.
//!
//! ```text
//! server                                                          builds the process, runs and stops it
//! endpoints                                                       what the secure port serves
//! health, object_counts, watch_metrics                            probes; metrics computed from the stores
//! bridge                                                          evictions by others become requests
//! listener                                                        the secure port: TLS and connections
//! connections                                                     the clients of both servers
//! config                                                          flags, environment, file
//! descheduling                                                    works with programs that move pods
//! access                                                          who may read metrics and nominate pods
//! daemonset                                                       the interceptor of DaemonSet pods
//! evictionrequest, nodemaintenance                                the two main controllers
//! evictioninterceptor                                             rules that register interceptors
//! temporary_requests                                              requests that end when nobody asks any more
//! context                                                         what all controllers share
//! stores                                                          the watched kinds
//! pod_stream                                                      the watch of pods over protobuf
//! informer, work_queue, leader, events, transport                 watches, queues, leader election, Events, the fence of writes
//! api, pod, metrics, deadline_queue, lease_fence, server_time,    API calls, the pod type, metrics, timers, clocks,
//! watch_health                                                    whether watches work
//! backoff, conditions, rejection, request_labels                  retry delays, conditions and messages, labels
//! wakeups                                                         how often the thread of the controllers wakes
//! token_bucket, sync                                              limits of rates, locks
//! ```
//!
//! Inside the two main controllers:
//!
//! ```text
//! evictionrequest    act, observe ▶ status ▶ decide ▶ attempts ▶ blocked ▶ snapshot ▶ refusal, interceptors ▶
//!                    budget, reason; broker, gone_pods, undelivered_writes
//! nodemaintenance    act ▶ act::requests, act::freshness ▶ observe; act ▶ act::completion, act::announcements, pace
//!                    observe ▶ components, recovery, index ▶ request_facts ▶ model ▶ node_state ▶ drain_plan, successor,
//!                    replacement, shared
//!                    plan ▶ plan::requests, plan::report ▶ plan::holds, plan::blockers ▶ plan::progress ▶
//!                    plan::returning ▶ model
//! ```
//!
//! # Invariants
//!
//! - Pure code has no clock.
//! - Nothing is decided before every initial list is complete, except that of budgets, which the eviction API knows anyway.
//! - Every decision is made from stored objects, so a crash between any two steps changes nothing.
//! - Nothing is written without the Lease, except by the bridge, and a process whose watches fail does not keep it.
//! - No pod is evicted before the intent is written to its request, under the version that was decided on.

pub mod access;
pub mod api;
pub mod backoff;
pub mod bridge;
pub mod conditions;
pub mod config;
pub mod connections;
pub mod context;
pub mod daemonset;
pub mod deadline_queue;
pub mod descheduling;
pub mod endpoints;
pub mod events;
pub mod evictioninterceptor;
pub mod evictionrequest;
#[cfg(test)]
mod fixtures;
pub mod health;
pub mod informer;
pub mod leader;
pub mod lease_fence;
pub mod listener;
pub mod metrics;
pub mod nodemaintenance;
pub mod object_counts;
pub mod pod;
pub mod pod_stream;
pub mod rejection;
pub mod request_labels;
pub mod server;
pub mod server_time;
pub mod stores;
mod sync;
pub mod temporary_requests;
pub mod token_bucket;
pub mod transport;
pub mod wakeups;
pub mod watch_health;
pub mod watch_metrics;
pub mod work_queue;
