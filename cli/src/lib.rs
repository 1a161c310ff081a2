//! The place of `kubectl-drydock`, the kubectl plugin for people who start, watch, explain and cancel maintenances and
//! evictions. It holds nothing yet: kubectl itself does all of that with the kinds as they are.
