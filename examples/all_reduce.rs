//! The all-reduce by itself: sums with the same bits for any number of workers.
//!
//! Run it with `cargo run --release --example all_reduce`.
//!
//! Additions round, so their order matters. Everstep adds along one fixed tree over the data shards
//! (here eight vectors). A worker adds the subtrees that are wholly its own and sends their roots
//! to the vector's owner. The owner adds them in any order of arrival, and sends the sum to all
//! workers. Owner and workers are tasks here, each with its QUIC endpoint. In a run, workers are
//! owners too.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::reduce::{Addend, Sum, Tree, TreeNode};
use everstep_transport::identity::{Authority, Identity, NODE_LIFETIME, Role};
use everstep_transport::protocol::{Chunk, ChunkKind, Encoding, Generation, NodeName, Shard, Step};
use everstep_transport::quic::{BulkReceiver, Endpoint, Expected, Link, Settings};

const DATA_SHARDS: u32 = 8;
const LENGTH: usize = 100_000; // elements of a vector
type Partial = (TreeNode, Shared); // the sum of the vectors under a node of the tree

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let tree = Tree::new(DATA_SHARDS);
    let expected = sum_under(tree, tree.root());
    let leaves = (0..DATA_SHARDS).map(|data_shard| sum_under(tree, TreeNode::leaf(data_shard)));
    let in_order = leaves.reduce(add).context("a tree has a leaf")?;
    let others = expected.iter().zip(&*in_order).filter(|(one, other)| one != other).count();
    println!("added in order instead, {others} of {LENGTH} sums would have other bits");
    for workers in [1, 2, 3, 5] {
        all_reduce(tree, workers, &expected).await?;
        println!("workers {workers}: all have the tree's sums, bit for bit");
    }
    Ok(())
}

async fn all_reduce(tree: Tree, workers: u32, expected: &Buffer) -> Result<()> {
    let (authority, mut tasks) = (Authority::create()?, Vec::new());
    let owner = endpoint(&authority, "owner")?;
    for rank in 0..workers {
        let data_shards = rank * DATA_SHARDS / workers..(rank + 1) * DATA_SHARDS / workers;
        let subtrees = tree.subtrees(&data_shards.collect()).into_iter();
        let partials = subtrees.map(|node| (node, Shared::new(sum_under(tree, node)))).collect();
        let own = endpoint(&authority, &format!("worker-{rank}"))?;
        tasks.push(tokio::spawn(contribute(own, owner.local_address(), partials)));
    }
    reduce(&owner, tree, workers).await?;
    for task in tasks {
        ensure!(task.await??.as_bytes() == expected.as_bytes(), "the sum depends on the workers");
    }
    Ok(())
}

/// The part of a worker: it sends its partials, then waits for the sum.
async fn contribute(own: Endpoint, owner: SocketAddr, partials: Vec<Partial>) -> Result<Buffer> {
    let link = own.connect(owner, &Expected::Role(Role::Worker)).await?;
    send(&link, &partials).await?;
    let received = receive(&mut link.accept_bulk().await?).await?;
    Ok(received.context("the owner sends nothing")?.1)
}

/// The part of the owner: it adds partials as they arrive, then sends the sum to all workers.
async fn reduce(own: &Endpoint, tree: Tree, workers: u32) -> Result<()> {
    let (mut links, mut root) = (Vec::new(), None);
    let mut sum = Sum::new(tree, LENGTH, Pool::new(0));
    for _ in 0..workers {
        let link = own.accept().await.context("the endpoint is closed")?;
        let mut partials = link.accept_bulk().await?;
        while let Some((node, partial)) = receive(&mut partials).await? {
            root = sum.insert(node, Addend::Owned(partial))?;
        }
        links.push(link);
    }
    let root = root.context("the partials do not cover the tree")?.into_shared();
    for link in links {
        send(&link, &[(tree.root(), root.clone())]).await?;
        link.closed().await; // by the worker, which then has the sum
    }
    Ok(())
}

async fn send(link: &Link, partials: &[Partial]) -> Result<()> {
    let mut stream = link.bulk().await?;
    let (generation, step, shard) = (Generation(1), Step(1), Shard(0));
    let (kind, encoding, count) = (ChunkKind::Partial, Encoding::F32, LENGTH as u32);
    for &(TreeNode { level, index }, ref values) in partials {
        let header =
            Chunk { kind, generation, step, shard, level, index, count, encoding, digest: 0 };
        stream.send(&header, Bytes::copy_from_slice(values.as_bytes())).await?;
    }
    Ok(stream.finish()?)
}

async fn receive(from: &mut BulkReceiver) -> Result<Option<(TreeNode, Buffer)>> {
    let Some(header) = from.header().await? else { return Ok(None) };
    let mut values = Buffer::detached(vec![0.0; LENGTH]);
    ensure!(header.body_bytes() == values.as_bytes().len(), "not a vector of {LENGTH} elements");
    from.body(&header, values.as_bytes_mut()).await?;
    Ok(Some((TreeNode { level: header.level, index: header.index }, values)))
}

fn endpoint(authority: &Authority, name: &str) -> Result<Endpoint> {
    let name = NodeName::parse(name).context("not a node's name")?;
    let credentials = authority.issue(&Identity { role: Role::Worker, name }, NODE_LIFETIME)?;
    let here = Ipv4Addr::LOCALHOST;
    Ok(Endpoint::bind((here, 0).into(), &credentials, Settings::for_address(here.into()), None)?)
}

fn add(left: Buffer, right: Buffer) -> Buffer {
    Buffer::detached(left.iter().zip(&*right).map(|(left, right)| left + right).collect())
}

fn sum_under(tree: Tree, node: TreeNode) -> Buffer {
    match tree.children(node) {
        Some([left, right]) => add(sum_under(tree, left), sum_under(tree, right)),
        None => Buffer::detached((node.index + 1..).take(LENGTH).map(|i| 1.0 / i as f32).collect()),
    }
}
