import { simulate } from '/tmp/rv/rev/build/test/instances/simulator-rv.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
for (const n of [0, 900, 1100, 3000]) {
  const all=limits(200,40000,'everyone')
  const stack=[limits(1000,4000,'client'),all], slow=[limits(0.02,20,'slow'),all]
  const src=[]
  for(let k=0;k<n;k++) src.push({instance:0,stack:slow,keys:['slow'+k,'all'],load:{kind:'saturated',depth:4}})
  for(const i of [0,1,2,3]) src.push({instance:i,keys:['n'+i,'all'],load:{kind:'saturated',depth:20}})
  const s=await simulate({stack,count:4,sources:src})
  await s.run(6000); const a=s.releases.length; await s.run(16000)
  const c=[0,0,0,0]; let sl=0; for(const r of s.releases.slice(a)) {if(r.source.stack) sl++; else c[r.source.instance]++}
  console.log({slowKeys:n,rate:(s.releases.length-a)/10,fastPerInstance:c.join('/'),slow:sl})
}
