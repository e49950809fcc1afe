//! What machines are made of: disk images and kernels, imported once and kept under a name.
//!
//! # Model
//!
//! A home directory has two collections: `images/NAME/` ([`image`]) and `kernels/NAME/` ([`kernel`]).
//! A member is imported from what users have (a root directory, a tar archive, an OCI layout; a kernel package)
//! or built with Debian's tools, and never changes afterwards. Images are cut into chunks at import,
//! so that a machine can link them and its first save need not hash them again.
//!
//! [`file_system`] reads the files of a disk that a guest has used.
//!
//! # Contract
//!
//! - A member appears whole and durable, or not at all. Nothing is ever replaced.
//! - Sources are untrusted. No path of the host is made from a name in a source, and every size and
//!   number has a limit. What is not understood is refused by name.
//! - The same tree of files gives the same file system, byte for byte.
//! - Reading changes nothing. What is read is verified.
//!
//! # Errors
//!
//! One enum per collection: [`image::ImageError`], [`kernel::KernelError`]. Both have a hint, the next
//! command to type.
//!
//! # Not here
//!
//! Machines and their disks, loading a kernel into a guest, the guest agent, pulling from registries.
//!
//! # Example
//!
//! ```
//! use guest_image::image::{self, Image};
//! use guest_image::progress::Silent;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let (home, root) = (dir.path().join("home"), dir.path().join("root"));
//! std::fs::create_dir(&root)?;
//! std::fs::write(root.join("hello"), "hello")?;
//! image::import(&home, "mine", &root, &Silent)?;
//! assert_eq!(image::names(&home)?, ["mine"]);
//!
//! let image = Image::open(&home, "mine")?;
//! let (map, chunks) = (image.map()?, image.chunks());
//! let mut chunk = vec![0; image::CHUNK_BYTES];
//! for id in map.chunks().iter().filter(|id| !id.is_zero()) {
//!     chunks.get(id, &mut chunk)?;
//! }
//! # Ok(()) }
//! ```

mod artifact;
mod budget;
pub mod file_system;
pub mod image;
pub mod kernel;
pub mod progress;

pub use artifact::name::valid_name;
pub use artifact::names_in;
pub use budget::{BudgetError, Limits};
