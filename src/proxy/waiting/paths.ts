/** Where pages listen for what becomes of their wait. Nothing else below `/.well-known/shaper/` is our own. */
export const STREAM_PATH = '/.well-known/shaper/wait'
