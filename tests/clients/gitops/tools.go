//go:build tools

// Package gitops names the programs that are built from other modules, so that go.mod keeps their versions.
package gitops

import (
	_ "helm.sh/helm/v4/cmd/helm"
	_ "sigs.k8s.io/kustomize/kustomize/v5"
)
