/** A tree whose nodes carry their own links, so that a node without children has no list, and any of them leaves in O(1). */
export interface TreeNode<N> {
  readonly parent: N | undefined
  childCount: number
  firstChild: N | undefined
  lastChild: N | undefined
  previousSibling: N | undefined
  nextSibling: N | undefined
}

/** Puts a node after the other children of its parent. */
export function attach<N extends TreeNode<N>>(node: N, parent: N): void {
  node.previousSibling = parent.lastChild
  if (parent.lastChild === undefined) parent.firstChild = node
  else parent.lastChild.nextSibling = node
  parent.lastChild = node
  parent.childCount += 1
}

/** Takes a node out of the children of its parent. */
export function detach<N extends TreeNode<N>>(node: N, parent: N): void {
  if (node.previousSibling === undefined) parent.firstChild = node.nextSibling
  else node.previousSibling.nextSibling = node.nextSibling
  if (node.nextSibling === undefined) parent.lastChild = node.previousSibling
  else node.nextSibling.previousSibling = node.previousSibling
  node.previousSibling = undefined
  node.nextSibling = undefined
  parent.childCount -= 1
}

/** In the order of their coming. */
export function* childrenOf<N extends TreeNode<N>>(parent: N): Generator<N> {
  for (let node = parent.firstChild; node !== undefined; node = node.nextSibling) yield node
}
