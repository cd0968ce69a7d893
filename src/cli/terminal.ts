/** Where a command reads and writes, and where it is: the process, or what stands for it in a test. */
export type Terminal = Pick<NodeJS.Process, 'stdin' | 'stdout' | 'stderr' | 'env' | 'cwd'>
