/** An entry that carries its own links, so that queueing allocates nothing. */
export interface Linked<E> {
  list: object | undefined
  previous: E | undefined
  next: E | undefined
}

/** A doubly linked list through its entries. All is O(1). An entry is in at most one list at a time. */
export class LinkedList<E extends Linked<E>> {
  first: E | undefined
  last: E | undefined
  size = 0

  push(entry: E): void {
    adopt(this, entry)
    entry.previous = this.last
    if (this.last === undefined) this.first = entry
    else this.last.next = entry
    this.last = entry
  }

  unshift(entry: E): void {
    adopt(this, entry)
    entry.next = this.first
    if (this.first === undefined) this.last = entry
    else this.first.previous = entry
    this.first = entry
  }

  insert(entry: E, before: E): void {
    if (before.previous === undefined) {
      this.unshift(entry)
      return
    }
    adopt(this, entry)
    entry.previous = before.previous
    entry.next = before
    before.previous.next = entry
    before.previous = entry
  }

  /** Takes the entry out, wherever it is. False: it was not in the list. */
  remove(entry: E): boolean {
    if (entry.list !== this) return false
    if (entry.previous === undefined) this.first = entry.next
    else entry.previous.next = entry.next
    if (entry.next === undefined) this.last = entry.previous
    else entry.next.previous = entry.previous
    entry.previous = undefined
    entry.next = undefined
    entry.list = undefined
    this.size -= 1
    return true
  }

  shift(): E | undefined {
    const entry = this.first
    if (entry !== undefined) this.remove(entry)
    return entry
  }

  *[Symbol.iterator](): Generator<E> {
    for (let entry = this.first; entry !== undefined; entry = entry.next) yield entry
  }
}

/** Not a method: a private one costs each instance a field. */
function adopt<E extends Linked<E>>(list: LinkedList<E>, entry: E): void {
  if (entry.list !== undefined) throw new TypeError('the entry is already in a queue')
  entry.list = list
  list.size += 1
}
