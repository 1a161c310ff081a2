//! What tools that deploy from a repository use to find their objects. Requests that copy the labels of a pod must not
//! look like objects of such a tool: it would delete them, as they are not in its repository.

/// The prefixes of labels by which tools find their objects.
const TRACKING_PREFIXES: [&str; 4] = [
    "argocd.argoproj.io/",
    "kapp.k14s.io/",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
];

/// Annotations that make Argo CD leave an object alone.
pub const IGNORED_ANNOTATIONS: [(&str, &str); 2] = [
    ("argocd.argoproj.io/sync-options", "Prune=false"),
    ("argocd.argoproj.io/compare-options", "IgnoreExtraneous"),
];

/// Whether a tool finds its objects by the label with this key.
#[must_use]
pub fn is_tracking_label(key: &str) -> bool {
    TRACKING_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_tools_are_recognized_by_their_domain() {
        for (key, expected) in [
            ("argocd.argoproj.io/instance", true),
            ("kustomize.toolkit.fluxcd.io/name", true),
            ("app.kubernetes.io/instance", false),
            ("argocd", false),
        ] {
            assert_eq!(is_tracking_label(key), expected, "{key}");
        }
    }
}
