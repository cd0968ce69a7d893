/** The public names of the package. */
export { type Addition, LeakyBucket, type LeakyBucketOptions } from './outbound/leaky-bucket.js'
