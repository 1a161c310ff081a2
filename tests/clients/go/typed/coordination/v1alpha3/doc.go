// Package v1alpha3 has the types of coordination.k8s.io/v1alpha3 as Drydock serves them, for the generators of client-go.
//
// +k8s:deepcopy-gen=package
// +groupName=coordination.k8s.io
package v1alpha3
