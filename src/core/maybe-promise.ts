export type MaybePromise<T> = T | Promise<T>

/** Calls `then` with a value, at once if it is there. `otherwise`: it will not come. */
export function when<T>(value: MaybePromise<T>, then: (value: T) => void, otherwise: () => void = ignore): void {
  if (value instanceof Promise) value.then(then, otherwise)
  else then(value)
}

export function ignore(): void {}
