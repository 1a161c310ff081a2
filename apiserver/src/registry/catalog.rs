//! The resources that a server serves, by group and version.

use std::sync::Arc;

use super::endpoint::Endpoint;
use super::resource::Resource;

/// Every resource that a server serves.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    resources: Vec<Arc<Resource>>,
}

impl Catalog {
    /// A catalog of these resources, in the order of discovery.
    #[must_use]
    pub fn new(resources: Vec<Arc<Resource>>) -> Self {
        Self { resources }
    }

    /// All resources.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }

    /// Groups with their versions in the order of preference: groups as they first occur, versions as their resources
    /// list them.
    #[must_use]
    pub fn group_versions(&self) -> Vec<(&'static str, &'static str)> {
        let mut found: Vec<(&'static str, &'static str)> = Vec::new();
        for resource in &self.resources {
            for face in &resource.faces {
                if !found.contains(&(resource.group, face.version)) {
                    found.push((resource.group, face.version));
                }
            }
        }
        found
    }

    /// The endpoints of a version of a group.
    pub fn of_group_version<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
    ) -> impl Iterator<Item = Endpoint> + 'a {
        self.resources
            .iter()
            .filter(move |resource| resource.group == group)
            .flat_map(Endpoint::all)
            .filter(move |endpoint| endpoint.face().version == version)
    }
}
