/** A longer copy of an array. */
export function grown<T extends Float64Array | Int32Array | Uint32Array>(array: T, length: number): T {
  const copy = new (array.constructor as new (length: number) => T)(length)
  copy.set(array)
  return copy
}
