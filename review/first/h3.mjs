import { simulate } from '/tmp/rv/rev/build/test/instances/simulator-rv.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
for (const [count,n] of [[1,900],[4,0],[4,5],[4,20],[4,100]]) {
  const all=limits(200,40000,'everyone')
  const stack=[limits(1000,4000,'client'),all], slow=[limits(0.02,20,'slow'),all]
  const src=[]
  for(let k=0;k<n;k++) src.push({instance:0,stack:slow,keys:['slow'+k,'all'],load:{kind:'saturated',depth:4}})
  for(const i of [0,1,2,3]) src.push({instance:i%count,keys:['n'+i,'all'],load:{kind:'saturated',depth:20}})
  const s=await simulate({stack,count,sources:src})
  await s.run(8000); const a=s.releases.length; await s.run(18000)
  const c={}; let sl=0; for(const r of s.releases.slice(a)) {if(r.source.stack) sl++; else c[r.source.keys[0]]=(c[r.source.keys[0]]??0)+1}
  console.log({count,slowKeys:n,rate:(s.releases.length-a)/10,fast:JSON.stringify(c),slow:sl})
}
